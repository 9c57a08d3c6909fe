"""Wrong, missing and hostile input of every sub-command ends in one line and the documented exit code."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sm_profiler.cli import main
from sm_profiler.cli.main import COMMANDS
from sm_profiler.errors import ProfilerError
from sm_profiler.run_folder import find_configuration, profile_folder, quoted, shown

ESCAPE = "\x1b[31mred\x07"
NOT_UTF8 = os.fsdecode(b"caf\xe9")
STRANGE = [
    "",
    " ",
    "nothing",
    "/dev/null",
    "/root/x",
    "s3://",
    "s3:///x",
    "file://x",
    "a" * 5000,
    "é 漢 x",
    ESCAPE,
    NOT_UTF8,
    "²",
]
CALLS = [
    *(["report", name] for name in STRANGE),
    *(["compare", name, name] for name in STRANGE),
    *(["merge-timeline", name, "--out", "t.json"] for name in STRANGE),
    *(["validate", name] for name in STRANGE),
    *(["run", name] for name in STRANGE if name != "/dev/null"),  # which is an empty script
    *(["run", "--", name] for name in STRANGE),
    *(["run", "-m", name] for name in [*STRANGE, "os.nothing", "..", ".a", "a..b", "email", "json.tool.x"]),
    *(["run", "--config", name, "script.py"] for name in STRANGE),
    *(["report", "profile", "--parameters", name] for name in STRANGE),
    *(["report", "profile", "--prices", name] for name in STRANGE),
    ["compare", "profile", "profile", "--fail-on", ESCAPE],
    ["monitor", "--out", "/dev/null/x"],
    ["monitor", "--out", "m", "--interval-ms", "0"],
    ["monitor", "--out", "m", "--interval-ms", "9" * 5000],
    ["monitor", "--out", "m", "--pid", "-1"],
    ["monitor", "--out", "m", "--pid", "99999999999999999999"],
    ["monitor", "--out", "m", "--upload", "http://x"],
    ["local", "--port", "99999"],
    ["local", "--port", "-1"],
    ["local", "--port", "²"],
    ["local", "--folder", "/dev/null/x", "--port", "0"],
    ["deploy", "--repository", "x", "--context", ESCAPE],
    ["rules", "start", "--job", ESCAPE, "--image", "i", "--role", "r", "--region", "eu-west-1"],
    ["rules", "start", "--job", "j", "--image", "i", "--role", "r", "--max-hours", "nan"],
    ["rules", "start", "--job", "j", "--image", "i", "--role", "r", "--volume-size-in-gb", "many"],
    *([name, f"--{ESCAPE}"] for name in COMMANDS),
]


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "SM_PROFILER_CONFIG", "SM_PROFILER_RULE_IMAGE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    (tmp_path / "script.py").write_text("print('ran')\n")
    return tmp_path


@pytest.mark.parametrize("words", CALLS, ids=lambda words: ascii(" ".join(words))[1:60])
def test_mistakes_are_one_line_with_exit_code_2(words, place, capsys):
    try:
        code = main(words)
    except SystemExit as ended:
        code = ended.code
    error = capsys.readouterr().err
    assert code == 2, error
    lines = error.splitlines()
    assert len(lines) == 1, error
    assert lines[0].startswith("sm-profiler")
    assert lines[0].isprintable()
    assert "Traceback" not in error
    assert not list(place.glob("sm-profiler/*"))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--verison"], "sm-profiler: unrecognized arguments: --verison; did you mean --version?"),
        (["report", "x", "--folow"], "sm-profiler report: unrecognized arguments: --folow; did you mean --follow?"),
        ([], "sm-profiler: no command given; commands: run, report"),
    ],
)
def test_mistyped_options_get_a_suggestion(words, line, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(line)


def test_json_in_the_place_of_a_file_is_recognized(capsys):
    assert main(["validate", '{"ProfilingParameters": {}}']) == 2
    assert "a file is expected, not JSON" in capsys.readouterr().err


def command(words, place, **options):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), **options.pop("environment", {})}
    return subprocess.run(
        [sys.executable, "-m", "sm_profiler", *words], cwd=place, env=environment, timeout=120, check=False, **options
    )


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("import no_such_package\n", 1),
        ("raise SystemExit(3)\n", 3),
        ("1 +\n", 1),
    ],
)
def test_failed_starts_leave_no_folder(script, code, place):
    (place / "script.py").write_text(script)
    done = command(["run", "script.py"], place, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert "nothing was recorded" in done.stderr.splitlines()[-1]
    assert not list(place.glob("sm-profiler/*"))


@pytest.mark.parametrize("limit", ["FSIZE, (100, 100)", "NOFILE, (16, 16)"])
def test_events_that_cannot_be_written_are_not_reported_as_steps_that_were_not_seen(limit, place):
    (place / "script.py").write_text(
        "import contextlib, os, resource, time\nfrom sm_profiler.hook import get_hook\nhook = get_hook()\n"
        f"resource.setrlimit(resource.RLIMIT_{limit})\nwith contextlib.suppress(OSError):\n"
        "    held = []\n    while len(held) < 100:\n        held.append(os.open('/dev/null', 0))\n"
        "for _ in range(30):\n    with hook.step():\n        sum(range(1000))\ntime.sleep(1)\n"
    )
    done = command(["run", "script.py"], place, capture_output=True, text=True)
    assert "events are lost" in done.stderr
    assert "no training step was seen" not in done.stderr
    assert done.stderr.splitlines()[-2].startswith("sm-profiler: no event could be written")
    assert "; next: sm-profiler report " in done.stderr.splitlines()[-1]


def test_a_run_without_steps_shows_how_to_mark_them(place):
    (place / "script.py").write_text("import time\ntime.sleep(1)\n")
    done = command(["run", "script.py"], place, capture_output=True, text=True)
    *_, line, last = done.stderr.splitlines()
    assert line.startswith("sm-profiler: no training step was seen: ")
    assert "with get_hook().step():" in line
    assert "; next: sm-profiler report " in last
    (place / "script.py").write_text(
        "from sm_profiler.hook import get_hook\nfor _ in range(30):\n    with get_hook().step():\n        sum(range(1000))\n"
    )
    done = command(["run", "--out", "marked", "script.py"], place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "no training step" not in done.stderr
    assert list((place / "marked").rglob("*_pythontimeline.json"))


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("number", "options", "name"),
    [
        (11, [], "SIGSEGV"),
        (9, ["--no-monitor"], "SIGKILL"),
        (9, [], "SIGKILL"),
        (15, ["--no-monitor"], "SIGTERM"),
        (15, [], "SIGTERM"),
    ],
)
def test_a_script_that_a_signal_ends_at_once_has_a_report(number, options, name, place):
    """Its folder was removed, although no traceback shows what happened."""
    (place / "script.py").write_text(f"import os; os.kill(os.getpid(), {number})\n")
    done = command(["run", *options, "script.py"], place, capture_output=True, text=True)
    assert done.returncode == 128 + number, done.stderr
    assert "; next: sm-profiler report " in done.stderr.splitlines()[-1]
    (folder,) = place.glob("sm-profiler/*")
    told = command(["report", str(folder)], place, capture_output=True, text=True)
    if options:
        assert told.stderr.endswith(f"the script was ended by {name} before anything was recorded\n")
    else:
        first = re.split(r"[.:]", told.stdout)[0]
        assert first in {
            "The script was ended by SIGSEGV",
            "The script was killed",
            "The script was stopped by SIGTERM",
        }


def test_runs_of_the_same_second_have_folders_of_their_own(place):
    folders = {profile_folder("train") for _ in range(3)}
    assert len(folders) == 3


def test_out_names_the_folder_of_the_profile(place):
    (place / "script.py").write_text("import time\ntime.sleep(1)\n")
    done = command(["run", "--out", "runs/first", "script.py"], place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.rstrip().endswith("next: sm-profiler report runs/first")
    assert (place / "runs/first/system").is_dir()
    again = command(["run", "--out", "runs/first", "script.py"], place, capture_output=True, text=True)
    assert (again.returncode, again.stderr) == (
        2, "sm-profiler: runs/first is not empty; a profile takes a new folder\n",
    )  # fmt: skip


def test_hint_can_be_pasted_into_a_shell(place):
    folder = place / "a b'c é"
    folder.mkdir()
    config = {"ProfilingIntervalInMilliseconds": 100, "ProfilingParameters": {"LocalPath": str(folder / "p $$x")}}
    (place / "config.json").write_text(json.dumps(config))
    (place / "script.py").write_text("import time\ntime.sleep(1)\n")
    done = command(["run", "--config", "config.json", "script.py"], place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    hint = done.stderr.splitlines()[-1].partition("sm-profiler report ")[2]
    shown = subprocess.run(["sh", "-c", f"printf %s {hint}"], capture_output=True, text=True, check=True)
    assert (place / shown.stdout).resolve() == (folder / "p $x").resolve()


def test_a_folder_that_cannot_be_written_gives_way_to_another_one(place):
    (place / "file").touch()
    config = {"ProfilingParameters": {"LocalPath": str(place / "file" / "profile")}}
    (place / "config.json").write_text(json.dumps(config))
    done = command(["run", "--config", "config.json", "script.py"], place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "this profile is written to" in done.stderr
    assert "Traceback" not in done.stderr


def test_run_uses_the_configuration_of_the_environment(place):
    config = {"ProfilingIntervalInMilliseconds": 100, "ProfilingParameters": {"LocalPath": str(place / "mine")}}
    (place / "config.json").write_text(json.dumps(config))
    (place / "script.py").write_text("import time\ntime.sleep(1)\n")
    for variables, origin in [
        ({"SM_PROFILER_CONFIG": json.dumps(config)}, "$SM_PROFILER_CONFIG"),
        ({"SM_PROFILER_CONFIG": "config.json"}, "config.json"),
        ({"SMPROFILER_CONFIG_PATH": str(place / "config.json")}, str(place / "config.json")),
    ]:
        done = command(["run", "script.py"], place, environment=variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert f"sm-profiler: configuration: {origin}\n" in done.stderr
        assert "sm-profiler report mine" in done.stderr.splitlines()[-1]
        assert not list(place.glob("sm-profiler/*"))
    done = command(
        ["run", "--no-monitor", "--config", "config.json", "script.py"], place, capture_output=True, text=True
    )
    assert "sm-profiler: configuration: config.json\n" in done.stderr


@pytest.mark.parametrize("stdin", ["<&-", "< /dev/null", "< /dev/urandom"])
def test_standard_input_of_any_kind_is_one_line(stdin, place):
    line = f"{sys.executable} -m sm_profiler validate - {stdin}"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(["sh", "-c", line], cwd=place, env=environment, capture_output=True, timeout=60, check=False)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr


ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.first(6)
@pytest.mark.parametrize("words", [["--help"], ["rules", "--help"], ["validate", "config.json"]])
@pytest.mark.parametrize("closing", ["", "| head -c 1", ">&-", "> /dev/full", "2>&-", "< /dev/null"])
def test_output_of_any_kind_never_ends_in_a_traceback(words, closing, place):
    (place / "config.json").write_text('{"S3OutputPath": "s3://bucket/é漢"}')
    line = f"{sys.executable} -m sm_profiler {' '.join(words)} {closing}"
    environment = {"PYTHONPATH": str(Path(__file__).parents[1]), "PATH": os.environ["PATH"], **ASCII}  # and no HOME
    done = subprocess.run(["sh", "-c", line], cwd=place, env=environment, capture_output=True, timeout=60, check=False)
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr
    assert done.returncode == (2 if "full" in closing else 0)


def test_names_that_are_not_utf8(place):
    script = place / f"{NOT_UTF8}.py"
    script.write_text("import time\ntime.sleep(1)\n")
    done = command(["run", os.fsencode(script)], place, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    (folder,) = place.glob("sm-profiler/*")
    done = command(["report", os.fsencode(folder)], place, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr


def test_read_only_folder(place):
    if os.access("/", os.W_OK):
        place = Path("/proc")  # not writable for root either
    else:
        place.chmod(0o500)
    (Path("/tmp") / "readonly-script.py").write_text("print(1)\n")
    done = command(["run", "/tmp/readonly-script.py"], place, capture_output=True, text=True)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr


def call_briefly(*words, timeout=30):
    return subprocess.run(
        [sys.executable, "-m", "sm_profiler", *words], capture_output=True, text=True, timeout=timeout, check=False
    )


def test_a_pipe_in_place_of_the_state_of_a_run_is_not_waited_for(tmp_path):
    (tmp_path / "runs" / ".sagemaker-ignore").mkdir(parents=True)
    os.mkfifo(tmp_path / "runs" / ".sagemaker-ignore" / "run-state")
    done = call_briefly("report", str(tmp_path / "runs"))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_folders_nested_a_thousand_deep_end_in_one_line(tmp_path):
    (tmp_path / "system").mkdir()
    here = os.open(tmp_path / "system", os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    done = call_briefly("report", str(tmp_path))
    subprocess.run(["rm", "-rf", str(tmp_path / "system")], check=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr[-300:]


@pytest.mark.first(1)
@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
def test_closed_standard_streams_do_not_change_the_exit_code(tmp_path, closed):
    profile = tmp_path / "profile" / "system" / "incremental" / "2023111422"
    profile.mkdir(parents=True)
    (profile / "1700000000.algo-1.json").write_text('{"Type":"cpu","Value":1,"Timestamp":1700000000}\n')
    command = f'exec "$0" -m sm_profiler report {tmp_path}/profile --out {tmp_path}/out {closed}'
    done = subprocess.run(["sh", "-c", command, sys.executable], capture_output=True, timeout=60, check=False)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)
    assert (tmp_path / "out" / "report.json").stat().st_size > 0


def test_a_file_that_fails_to_be_read_is_counted_and_the_others_are_reported(tmp_path):
    profile = tmp_path / "profile" / "system" / "incremental" / "2023111422"
    profile.mkdir(parents=True)
    (profile / "1700000000.algo-1.json").write_text('{"Type":"cpu","Value":1,"Timestamp":1700000000}\n')
    (profile / "1700000000.algo-2.json").symlink_to("/proc/self/mem")  # reading it is an error
    done = call_briefly("report", str(tmp_path / "profile"), "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    quality = json.loads((tmp_path / "out" / "report.json").read_text())["data_quality"]
    assert quality["states"] == {"read": 1, "refused": 1}


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x" * 5000, "this profile is written to"),
        ("a\0b", "LocalPath: not a possible path"),
        ("\ud800", "LocalPath: not a possible path"),
        ("e'\x1b[31m\n", "sm-profiler report $'"),
    ],
    ids=["long", "null byte", "surrogate", "escape"],
)
def test_no_configured_folder_changes_the_end_of_a_script(tmp_path, name, message):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"ProfilingParameters": {"LocalPath": f"{tmp_path}/{name}"}}))
    script = tmp_path / "script.py"
    script.write_text("raise SystemExit(7)\n")
    words = [sys.executable, "-m", "sm_profiler", "run", "--config", str(config), str(script)]
    environment = {**os.environ, "SM_PROFILER_ROOT": str(tmp_path / "ml")}
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=60, check=False, cwd=tmp_path)
    assert done.returncode == 7, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize("name", ["plain", "two words", "it's", "e'\x1b[31m\n", "\udcff", "back\\slash\t", "名前"])
def test_a_quoted_path_is_that_path_to_a_shell(name):
    shown = quoted(Path(name))
    assert shown.isprintable()
    found = subprocess.run(["bash", "-c", f"printf %s {shown}"], capture_output=True, check=True).stdout
    assert os.fsdecode(found) == name


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_standard_error_does_not_keep_the_script_from_running(place):
    (place / "script.py").write_text("import sys\nopen('ran', 'w').close()\nsys.exit(7)\n")
    with open("/dev/full", "w") as full:
        assert command(["run", "script.py"], place, stderr=full).returncode == 7
    assert (place / "ran").exists()


@pytest.mark.parametrize("kind", ["file", "pipe", "loop", "dangling link"])
def test_a_profile_that_can_have_no_folder_costs_one_line(kind, place):
    folder = place / "sm-profiler"
    if kind == "file":
        folder.touch()
    elif kind == "pipe":
        os.mkfifo(folder)
    else:
        folder.symlink_to("sm-profiler" if kind == "loop" else "nowhere")
    (place / "script.py").touch()
    done = command(["run", "script.py"], place, capture_output=True, text=True)
    line = f"sm-profiler: {folder}: no folder, which the profile needs; see --out\n"
    assert (done.returncode, done.stderr) == (2, line)


def test_a_long_name_of_a_script_is_cut_in_the_name_of_its_folder(place):
    for name in ("x" * 250, "é" * 120, "\udcff" * 200):
        folder = profile_folder(name)
        assert folder.is_dir()
        assert folder.name[0] == name[0] or name[0] == "\udcff"


def test_a_removed_working_folder_is_named_in_the_error(place, monkeypatch):
    (gone := place / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(ProfilerError, match="the current folder: No such file"):
        find_configuration(None, "train")
    assert shown(place) == place
