"""The folder of a profile: one for each job and user."""

import json
import os
import pwd
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sm_profiler.config import Profile
from sm_profiler.container import escaped, expanded
from sm_profiler.errors import ProfilerError
from sm_profiler.hook.settings import find_config
from sm_profiler.monitor.place import find, settle, user_name
from sm_profiler.monitor.task import job_name
from sm_profiler.settings import run_id

NOBODY = 65534
ROOT = Path(__file__).parents[2]
# A training without a framework.
SCRIPT = """
import os, sys
from sm_profiler.hook import entry, get_hook, recorder
from sm_profiler.formats import trace_recovery
if os.environ.get("UID"):  # late: the interpreter may be out of that user's reach
    import pkgutil, importlib, tempfile
    import sm_profiler.formats, sm_profiler.hook, sm_profiler.monitor
    for package in (sm_profiler.formats, sm_profiler.hook, sm_profiler.monitor):
        for found in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            if not found.ispkg and found.name.rpartition(".")[2] not in {"auto", "launch", "telemetry"}:
                try: importlib.import_module(found.name)
                except Exception: pass
    os.setgroups([])
    os.setgid(int(os.environ["UID"]))
    os.setuid(int(os.environ["UID"]))
hook = get_hook()
print("on", flush=True)
sys.stdin.readline()
if hook:
    for _ in range(3):
        with hook.step():
            pass
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def tmp_path(tmp_path_factory):
    """A folder that other users can enter, as pytest's own is not."""
    folder = Path(os.path.realpath("/tmp")) / f"sm-profiler-test-{os.getpid()}-{time.monotonic_ns()}"
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))


def variables(path, job="", **others):
    config = json.dumps({"ProfilingParameters": {"LocalPath": str(path)}})
    return {"SM_PROFILER_CONFIG": config, "TRAINING_JOB_NAME": job, "SM_PROFILER_RUN_ID": "run", **others}


def settled(path, job="", **others):
    return Path(settle(Profile(local_path=str(path)), variables(path, job, **others)).local_path)


def start(folder, path, job="", user="", **others):
    environment = {
        "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "SM_PROFILER_AUTO": "1", "TMPDIR": str(folder), "UID": str(user),
        **variables(path, job, **others),
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], env=environment, cwd="/", text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout.readline() == "on\n", process.stderr.read()
    return process


def finish(*processes):
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    errors = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes)
    return errors


def recorded(folder):
    """Return the ranks and the steps of a profile, and whether it has system metrics."""
    traces = folder.glob("framework/pevents/*/*_pythontimeline.json")
    return sorted(path.name.split("_")[1] for path in traces), bool(list(folder.glob("system/incremental/*/*.json")))


def test_two_jobs_with_one_local_path_have_a_profile_each(tmp_path):
    path = tmp_path / "profile"
    one = [start(tmp_path, path, "train-101", RANK=rank) for rank in "01"]
    two = start(tmp_path, path, "train-102", RANK="0")
    errors = finish(*one, two)
    own = path / f"{user_name()}-train-102"
    assert recorded(path) == (["0-algo-1", "1-algo-1"], True)
    assert recorded(own) == (["0-algo-1"], True)
    assert f"{path} has the profile of job train-101 of {user_name()}; this profile is written to {own}\n" in errors[2]
    assert "this one" not in errors[0] + errors[1]


@needs_root
def test_another_user_on_the_node_has_a_profile_too(tmp_path):
    tmp_path.chmod(0o1777)
    mine = start(tmp_path, tmp_path / "profile", "train", RANK="0")
    theirs = start(tmp_path, tmp_path / "profile", "train", user=NOBODY, RANK="0")
    errors = finish(mine, theirs)
    name = pwd.getpwuid(NOBODY).pw_name
    own = tmp_path / f"sm-profiler-{name}-train"
    assert [recorded(place)[0] for place in (tmp_path / "profile", own)] == [["0-algo-1"]] * 2
    assert f"{tmp_path}/profile: belongs to another user; this profile is written to {own}; with %u" in errors[1] or (
        "Permission denied; this profile is written to" in errors[1]
    )
    assert {one.stat().st_mode & 0o777 for one in (own, tmp_path / "profile")} == {0o700}


@needs_root
def test_users_share_a_parent_folder(tmp_path):
    tmp_path.chmod(0o1777)
    path = tmp_path / "shared" / "%u" / "$SLURM_JOB_ID"
    finish(
        start(tmp_path, path, SLURM_JOB_ID="7"),
        start(tmp_path, path, user=NOBODY, SLURM_JOB_ID="8"),
    )
    places = [
        tmp_path / "shared" / name / job for name, job in ((user_name(), "7"), (pwd.getpwuid(NOBODY).pw_name, "8"))
    ]
    assert [len(recorded(place)[0]) for place in places] == [1, 1]
    assert (tmp_path / "shared").stat().st_mode & 0o7777 == 0o1777
    assert [place.parent.stat().st_mode & 0o777 for place in places] == [0o700, 0o700]


@pytest.mark.parametrize(("mode", "shared"), [(0o777, 0o1777), (0o1777, 0o1777), (0o775, 0o1775), (0o755, 0o755)])
def test_the_first_user_does_not_shut_out_the_others(tmp_path, mode, shared):
    """The folders above that of the first user, as below a scratch folder for all, kept the others out."""
    tmp_path.chmod(mode)
    assert settled(tmp_path / "a" / "b" / "%u" / "%j", "train") == tmp_path / "a" / "b" / user_name() / "train"
    assert {folder.stat().st_mode & 0o7777 for folder in (tmp_path / "a", tmp_path / "a/b")} == {shared}
    private = 0o700 if mode & 0o2 else 0o755
    assert {one.stat().st_mode & 0o777 for one in (tmp_path / "a/b").rglob("*") if one.name != "owner"} >= {private}


def test_a_folder_named_like_the_user_is_the_users_if_it_is_the_last_one(tmp_path, monkeypatch):
    monkeypatch.setattr("sm_profiler.monitor.place.user_name", lambda: "profiles")
    tmp_path.chmod(0o1777)
    settled(tmp_path / "profiles" / "%u" / "%j", "train")
    modes = [(tmp_path / folder).stat().st_mode & 0o7777 for folder in ("profiles", "profiles/profiles")]
    assert modes == [0o1777, 0o700]


@needs_root
def test_the_second_user_of_a_plain_folder_gets_the_hint(tmp_path):
    tmp_path.chmod(0o777)
    mine = start(tmp_path, tmp_path / "profile", "train", user=NOBODY - 1)
    theirs = start(tmp_path, tmp_path / "profile", "train", user=NOBODY)
    errors = finish(mine, theirs)
    assert "Permission denied; this profile is written to" in errors[1]
    assert "; with %u in LocalPath, each user has a folder there\n" in errors[1]


@needs_root
def test_the_hint_is_left_out_of_a_path_that_has_it(tmp_path):
    tmp_path.chmod(0o1777)
    (tmp_path / "profiles").mkdir(mode=0o755)
    os.chown(tmp_path / "profiles", NOBODY - 1, NOBODY - 1)
    (error,) = finish(start(tmp_path, tmp_path / "profiles" / "%u" / "%j", "train", user=NOBODY))
    assert "belongs to another user; this profile is written to" in error
    assert "%u" not in error


@needs_root
def test_what_another_user_planted_is_not_followed(tmp_path):
    tmp_path.chmod(0o1777)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link, folder = tmp_path / "link", tmp_path / "folder"
    link.symlink_to(elsewhere)
    folder.mkdir(0o777)
    for planted in (link, folder):
        os.chown(planted, NOBODY, NOBODY, follow_symlinks=False)
        found = settled(planted / "profile", "a")
        assert planted not in (found, *found.parents)
        shutil.rmtree(found)
    assert list(elsewhere.iterdir()) == []
    ours = tmp_path / "ours"
    ours.symlink_to(elsewhere)
    assert settled(ours, "a") == elsewhere


def test_secrets_are_never_part_of_a_path():
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "HF_TOKEN", "DB_PASSWORD", "WANDB_API_KEY"):
        with pytest.raises(ProfilerError, match=f"{name} has the name of a secret"):
            settle(Profile(s3_output_path=f"s3://b/${name}"), {name: "value"})


def test_a_folder_for_everybody_gets_a_folder_for_each_job(tmp_path):
    tmp_path.chmod(0o1777)
    assert settled(tmp_path, "a") == tmp_path / f"{user_name()}-a"
    assert settled(tmp_path, "b") == tmp_path / f"{user_name()}-b"
    assert settled(tmp_path, "a") == tmp_path / f"{user_name()}-a"


def test_a_job_keeps_its_folder(tmp_path):
    path = tmp_path / "profile"
    first, second, third = settled(path, "a"), settled(path, "b/c"), settled(path, "b c")
    assert (first, second.parent, third.parent) == (path, path, path)
    assert len({first, second, third}) == 3  # although two names make the same folder
    assert [settled(path, job) for job in ("b c", "b/c", "a")] == [third, second, first]
    assert [find(Profile(local_path=str(path)), variables(path, job)) for job in ("b c", "d")] == [third, None]


@pytest.mark.parametrize("end", ["interrupted", "complete", "on another host", "running"])
def test_a_job_without_a_name_goes_on_after_an_interruption(tmp_path, end):
    path = tmp_path / "profile"
    assert settled(path, SM_PROFILER_RUN_ID="first") == path
    claim = path / ".sagemaker-ignore/owner"
    job, user, process = claim.read_text().split("\n")
    host, pid, started = process.split(" ")
    if end != "running":
        started += "0"
    if end == "on another host":
        host += "-2"
    claim.write_text(f"{job}\n{user}\n{host} {pid} {started}")
    if end == "complete":
        (path / "system").mkdir()
        (path / "system/training_job_end.ts").touch()
    second = settled(path, SM_PROFILER_RUN_ID="second")
    assert second == (path if end == "interrupted" else path / f"{user_name()}-second")
    assert settled(path, SM_PROFILER_RUN_ID="second") == second  # another rank


@pytest.mark.parametrize("uploads", [False, True])
def test_a_folder_that_cannot_be_created_is_replaced_aloud(tmp_path, caplog, uploads):
    """As /opt/ml for an ordinary user; uploaded files may disappear with the job, others may not."""
    (tmp_path / "file").touch()
    profile = Profile(local_path=str(tmp_path / "file/profile"), s3_output_path="s3://bucket/out" if uploads else None)
    folder = Path(settle(profile, variables("x", "job")).local_path)
    name = f"{user_name()}-job"
    assert folder == (tmp_path / f"temporary/sm-profiler-{name}" if uploads else tmp_path / "sm-profiler" / name)
    (line,) = caplog.messages
    assert line == f"sm-profiler: {tmp_path}/file/profile: Not a directory; this profile is written to {folder}"
    settle(profile, variables("x", "job"))
    assert len(caplog.messages) == 1  # not for each rank


def test_no_folder_at_all_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    monkeypatch.setattr(Path, "absolute", lambda self: tmp_path / "file" / self)
    with pytest.raises(ProfilerError, match=r"no folder for the profile: .*Not a directory"):
        settled(tmp_path / "file/profile", "job")


def test_a_container_of_sagemaker_keeps_its_layout(tmp_path):
    resources = tmp_path / "input/config/resourceconfig.json"
    resources.parent.mkdir(parents=True)
    resources.write_text("{}")
    ml = {"SM_PROFILER_ROOT": str(tmp_path)}
    for job in ("a", "b"):
        assert settled("/opt/ml/output/profiler", job, **ml) == Path("/opt/ml/output/profiler")
    assert not (tmp_path / "output").exists()


def test_a_profile_of_the_service_keeps_its_folder(tmp_path):
    environment = {"TRAINING_JOB_NAME": "b"}  # no configuration in it
    assert settle(Profile(local_path=str(tmp_path)), environment).local_path == str(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("/a/%u/%j/%h", "/a/me/job-1/" + os.uname().nodename.partition(".")[0]),
        ("$TMPDIR/${SLURM_JOB_ID}_x", "/scratch/42_x"),
        ("~/profile", "/home/me/profile"),
        ("~", "/home/me"),
        ("a~b/100%/%20", "a~b/100%/%20"),
        ("$$5/%%u", "$5/%u"),
        ("s3://bucket/%u/x", "s3://bucket/me/x"),
    ],
)
def test_variables_in_paths(text, result):
    environment = {"TMPDIR": "/scratch", "SLURM_JOB_ID": "42", "HOME": "/home/me"}
    assert expanded(text, environment, "job-1", "me") == result
    assert expanded(escaped(text), environment, "job-1", "me") == (text if "~" not in text[:1] else result)


def test_an_unknown_code_in_a_path_is_an_error():
    """It used to become a folder of that name."""
    said = r"^LocalPath: /tmp/%q: %q has no meaning: use %u \(user\), %h \(host\), %j \(job\) or %% \(the character\)$"
    with pytest.raises(ProfilerError, match=said):
        settled("/tmp/%q", "job")


def test_variables_that_are_not_set_are_an_error(tmp_path):
    with pytest.raises(ProfilerError, match=r"LocalPath: \$NOPE/x: the environment variable NOPE is not set"):
        settled("$NOPE/x", "job")
    with pytest.raises(ProfilerError, match=r"S3OutputPath: .* EMPTY is not set"):
        settle(Profile(s3_output_path="s3://b/$EMPTY"), variables("x", "job", EMPTY=""))
    with pytest.raises(ProfilerError, match="NOPE is not set"):
        find_config({"SM_PROFILER_CONFIG": "$NOPE/config.json"})


def test_variables_work_in_the_profilers_own_paths(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    environment = {"SM_PROFILER_CONFIG": "$PLACE/config.json", "PLACE": str(tmp_path)}
    assert find_config(environment).path == tmp_path / "config.json"


def test_the_hook_names_the_missing_variable(tmp_path):
    (error,) = finish(start(tmp_path, "$NOPE/profile", "job"))
    assert error == "sm-profiler: the hook is off: LocalPath: $NOPE/profile: the environment variable NOPE is not set\n"


def test_why_the_hook_is_off_is_one_line_a_node(tmp_path):
    """A launcher that imports torch, and its ranks; ranks that srun or mpirun starts."""
    started = "import os, subprocess, sys; from sm_profiler.hook.entry import install; install()\n"
    ranks = (
        "for rank in '01': subprocess.run([sys.executable, '-c', sys.argv[1]], env={**os.environ, 'LOCAL_RANK': rank})"
    )
    config = json.dumps({"ProfilingParameters": {"LocalPath": "$NOPE/x"}})
    environment = {**os.environ, "SM_PROFILER_AUTO": "0", "SM_PROFILER_CONFIG": config}

    def lines(script, **more):
        command = [sys.executable, "-c", script, started]
        done = subprocess.run(command, env={**environment, **more}, capture_output=True, text=True, check=True)
        return done.stderr.count("the hook is off: LocalPath: $NOPE/x")

    assert lines(started + ranks) == 1
    assert lines(started.replace(" install()", "") + ranks) == 1
    assert lines(started, OMPI_COMM_WORLD_LOCAL_RANK="1") == 0
    assert lines(started, SM_PROFILER_REPORTED="1") == 1  # something else, by sm-profiler run


@pytest.mark.parametrize(
    ("environment", "name"),
    [
        ({"TRAINING_JOB_NAME": "a", "SLURM_JOB_ID": "1"}, "a"),
        ({"SLURM_JOB_ID": "1", "SM_PROFILER_RUN_ID": "x"}, "slurm-1"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "bert-worker-0"}, "bert"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "bert-x7k2p"}, "bert-x7k2p"),
        ({"SM_PROFILER_RUN_ID": "x", "TORCHELASTIC_RUN_ID": "y"}, "x"),  # of the launcher
        ({"TORCHELASTIC_RUN_ID": "y"}, "y"),
        ({"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "a", "MASTER_PORT": "1", "WORLD_SIZE": "2"}, "a-1"),
    ],
)
def test_what_names_a_job(environment, name):
    assert job_name(environment) == name


def test_children_of_a_run_without_a_name_have_its_id(monkeypatch):
    monkeypatch.delenv("SM_PROFILER_RUN_ID", raising=False)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    assert run_id().endswith(f"-{os.getpid()}")
    assert os.environ["SM_PROFILER_RUN_ID"] == run_id()
