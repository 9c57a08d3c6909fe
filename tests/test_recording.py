"""`sm_profiler.start()` and `stop()` in a process that trains already, as in a notebook."""

import gc
import json
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import sm_profiler
from sm_profiler.errors import ProfilerError
from sm_profiler.hook import entry
from sm_profiler.report import build_report
from sm_profiler.source import open_source

model = nn.Linear(8, 4)  # exists before
optimizer = torch.optim.SGD(model.parameters(), 0.1)


def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()


def steps_in(folder):
    (rank,) = build_report(open_source(folder, cache=False)).metrics.ranks
    return rank.train_steps


@pytest.fixture(autouse=True)
def stopped(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    while sm_profiler.recording._running:
        sm_profiler.stop()


def test_two_recordings_one_after_the_other(tmp_path, capfd):
    train(3)
    threads, callbacks = threading.active_count(), list(gc.callbacks)
    with sm_profiler.start(tmp_path / "first") as recording:
        train(30)
    assert repr(recording) == f"<sm_profiler: recorded in {tmp_path / 'first'}>"
    train(3)  # in no profile
    sm_profiler.start("second")
    train(20)
    assert sm_profiler.stop() == tmp_path / "second"
    assert [steps_in(tmp_path / name) for name in ("first", "second")] == [30, 20]
    written = {path.relative_to(tmp_path / "first").parts[0] for path in (tmp_path / "first").rglob("*")}
    assert {"framework", "system"} <= written  # the machine is sampled
    assert (tmp_path / "first" / "framework" / "training_job_end.ts").exists()
    config = json.loads((tmp_path / "first" / "profilerconfig.json").read_text())
    assert config["ProfilingIntervalInMilliseconds"] == 500
    assert "sm-profiler: next: sm-profiler report second" in capfd.readouterr().err
    assert threading.active_count() == threads
    assert gc.callbacks == callbacks
    assert entry.get_hook(create=False) is None


@pytest.mark.parametrize("config", [None, {"ProfilingIntervalInMilliseconds": 1000}])
def test_a_cell_that_is_run_again_begins_a_new_profile(tmp_path, capfd, config):
    """It failed: after an error in the cell, after stop(), and after a restart of the kernel."""
    config = config and config | {"ProfilingParameters": {"LocalPath": str(tmp_path / "runs" / "a")}}
    folder = None if config else "runs/a"
    sm_profiler.start(folder, config)
    train(10)
    sm_profiler.start(folder, config)
    train(20)
    assert sm_profiler.stop() == tmp_path / "runs" / "a-2"
    with sm_profiler.start(folder, config) as recording:
        train(30)
    assert recording.folder == tmp_path / "runs" / "a-3"
    assert [steps_in(tmp_path / "runs" / name) for name in ("a", "a-2", "a-3")] == [10, 20, 30]
    lines = capfd.readouterr().err.splitlines()
    assert lines[1:3] == [
        "sm-profiler: the recording before was not stopped and ends here; next: sm-profiler report runs/a",
        f"sm-profiler: writing the profile to {tmp_path}/runs/a-2: runs/a has one already",
    ]


def test_the_second_rank_in_a_folder_learns_what_records_all(monkeypatch, capfd):
    sm_profiler.start("runs/a").stop()
    monkeypatch.setenv("RANK", "1")
    sm_profiler.start("runs/a")
    said = "has one already; to profile all ranks together, start them with 'sm-profiler run'"
    assert said in capfd.readouterr().err


def test_a_start_that_is_interrupted_can_be_repeated(tmp_path, monkeypatch):
    """The hook stayed, and the next recording took the process for one that is profiled from its beginning."""

    def interrupted(*_args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(entry, "_arm", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sm_profiler.start("first")
    assert entry.get_hook(create=False) is None
    with sm_profiler.start("second"):
        train(20)
    assert steps_in(tmp_path / "second") == 20


def test_a_script_that_records_itself_works_in_a_process_that_is_profiled(tmp_path, monkeypatch, capfd):
    """It failed under `sm-profiler run`."""
    hook = SimpleNamespace(session=SimpleNamespace(root=tmp_path))
    monkeypatch.setattr(entry, "get_hook", lambda **_: hook)
    with sm_profiler.start("runs/a") as recording:
        assert recording.hook is hook
    sm_profiler.start()
    sm_profiler.start()
    assert sm_profiler.stop() == tmp_path
    assert not (tmp_path / "runs").exists()
    assert f"profiled from its beginning, to {tmp_path}" in capfd.readouterr().err


def test_the_job_begins_with_the_recording(tmp_path):
    with sm_profiler.start(tmp_path / "profile"):
        train(30)
    report = build_report(open_source(tmp_path / "profile", cache=False))
    assert report.metrics.initialization < 60  # not the age of this process
    assert all(one["process_us"] <= one["loaded_us"] for one in report.metrics.metadata)
    assert not report.metrics.running


def test_a_configuration_may_be_an_object_a_mapping_or_a_file(tmp_path):
    configs = [
        sm_profiler.ProfilerConfig(framework_profile_params=sm_profiler.FrameworkProfile(start_step=2, num_steps=1)),
        {"ProfilingParameters": {"LocalPath": str(tmp_path / "own")}, "ProfilingIntervalInMilliseconds": 1000},
    ]
    (tmp_path / "file.json").write_text(
        json.dumps(configs[1] | {"ProfilingParameters": {"LocalPath": str(tmp_path / "of_file")}})
    )
    assert sm_profiler.start("folder", configs[0]).stop() == tmp_path / "folder"
    assert sm_profiler.start(config=configs[1]).stop() == tmp_path / "own"
    assert sm_profiler.start(config="file.json").stop() == tmp_path / "of_file"


def test_without_a_folder_each_recording_gets_a_new_one(tmp_path):
    folder = sm_profiler.start().stop()
    assert folder.parent == tmp_path / "sm-profiler"


def test_errors_are_one_line(tmp_path, monkeypatch):
    with pytest.raises(ProfilerError, match=r"^stop: nothing is being recorded; sm_profiler\.start\(\) begins$"):
        sm_profiler.stop()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "train.py").touch()
    with pytest.raises(
        ProfilerError, match=r"^start: full is not empty; a profile takes a new folder: name another folder"
    ):
        sm_profiler.start("full")
    with pytest.raises(ProfilerError, match="not int"):
        sm_profiler.start("third", 3)
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ProfilerError, match=r"^start: .*file.*: Not a directory$"):
        sm_profiler.start("file/below")
    with pytest.raises(ProfilerError, match="No such file"):
        sm_profiler.start(config="missing.json")
    for folder in (3, b"third", "a\0b"):
        with pytest.raises(ProfilerError, match=r"^start: "):
            sm_profiler.start(folder)
    with pytest.raises(ProfilerError, match="ProfilingParameters of the configuration is an object, not list"):
        sm_profiler.start("third", {"ProfilingParameters": [1]})
    with pytest.raises(ProfilerError, match="not JSON serializable"):
        sm_profiler.start("third", {"KmsKeyId": object()})
    with pytest.raises(ProfilerError, match="records no framework"):
        sm_profiler.start("third", {"ProfilingParameters": {"LocalPath": "/x"}, "DisableProfiler": True})
    monkeypatch.setattr("sm_profiler.hook.frameworks.frameworks", tuple)
    with pytest.raises(ProfilerError, match="no training framework is installed"):
        sm_profiler.start("third")


def test_an_exception_of_the_block_is_the_scripts(tmp_path):
    def fails():
        with sm_profiler.start("profile"):
            train(3)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert json.loads((tmp_path / "profile/.sagemaker-ignore/run-state").read_text())["exit_code"] == 1


class Shell:
    """The part of IPython that has the cells' numbers."""

    def __init__(self, files):
        self.compile = type("Compiler", (), {"_filename_map": files})()


def test_cells_have_their_number(monkeypatch):
    from sm_profiler.hook.frames import cell_name, file_of, shown

    file = "/tmp/ipykernel_6752/2794.py"
    assert cell_name(file) is None or "IPython" in sys.modules
    shell = type(sys)("IPython")
    shell.get_ipython = lambda: Shell({file: 5})
    monkeypatch.setitem(sys.modules, "IPython", shell)
    assert cell_name(file) == "cell 5"
    assert file_of("cell 5") == file
    assert shown("<ipython-input-7-0123abcd>") == "cell 7"
    assert shown("/tmp/ipykernel_6752/other.py") == "/tmp/ipykernel_6752/other.py"
    assert shown("/home/me/train.py") == "/home/me/train.py"
    shell.get_ipython = lambda: None  # a script that imports IPython
    assert shown(file) == file


def test_the_sampler_and_the_report_show_a_cell_by_its_text(monkeypatch):
    import linecache

    from sm_profiler.diagnosis.model import Location
    from sm_profiler.hook.frames import outwards
    from sm_profiler.hook.stacks import StackReader, source_line
    from sm_profiler.render.flame import at_line

    file, text = "/tmp/ipykernel_1/99.py", "import sys\nframe = sys._getframe()\n"
    shell = type(sys)("IPython")
    shell.get_ipython = lambda: Shell({file: 12})
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(linecache.cache, file, (len(text), None, text.splitlines(keepends=True), file))
    names = {}
    exec(compile(text, file, "exec"), names)  # noqa: S102 - as a notebook does
    assert StackReader().read(outwards(names["frame"]))[0][-1] == ("cell 12", 2, "<module>")
    assert source_line("cell 12", 2) == "frame = sys._getframe()"
    assert at_line(Location("cell 12", 2, "<module>", 1.0, source="loss.backward()")) == 'cell 12: "loss.backward()"'
    assert at_line(Location("cell 12", 2, "<module>", 1.0)) == "cell 12:2"


class Events:
    def __init__(self):
        self.functions = []

    def register(self, name, function):
        assert name == "post_run_cell"
        self.functions.append(function)

    def unregister(self, _name, function):
        self.functions.remove(function)


def test_the_pause_between_two_cells_belongs_to_no_step(tmp_path, monkeypatch):
    """It was the whole of a very long step, in the notebook's event loop."""
    shell, events = type(sys)("IPython"), Events()
    shell.get_ipython = lambda: SimpleNamespace(events=events, compile=SimpleNamespace(_filename_map={}))
    monkeypatch.setitem(sys.modules, "IPython", shell)
    with sm_profiler.start(tmp_path / "profile") as recording:
        deadline = time.monotonic() + 60
        while recording.hook.session.tracker.rest is None and time.monotonic() < deadline:
            train(20)
        assert recording.hook.session.tracker.rest is not None
        events.functions[0](None)
        time.sleep(3.0)
        train(50)
    assert not events.functions
    (rank,) = build_report(open_source(tmp_path / "profile", cache=False)).metrics.ranks
    assert (rank.steps.end - rank.steps.start).max() < 2.5e6


SECRETS = [
    ('api_key = "sk-live-0123456789abcdefghij"', 'api_key = "***"'),
    ("client = Client(token='abc def', retries=3)", "client = Client(token='***', retries=3)"),
    ('headers = {"X-Api-Key": "1234"}', 'headers = {"X-Api-Key": "***"}'),
    ('os.environ["WANDB_API_KEY"] = "0123456789"', 'os.environ["WANDB_API_KEY"] = "***"'),
    ('os.environ.setdefault("DB_PASSWORD", "hunter2")', 'os.environ.setdefault("DB_PASSWORD", "***")'),
    ('password: str = "with \\" quote"', 'password: str = "***"'),
    ('connect("postgres://me:hunter2@host/db")', 'connect("postgres://***@host/db")'),
    ("login('hf_abcdefghijklmnopqrstuvwx')", "login('***')"),
    ('key = "AKIAIOSFODNN7EXAMPLE"', 'key = "***"'),
    ('x = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"', 'x = "***"'),
    ("send('xoxb-123456789012-abcdef')", "send('***')"),
    ('push("ghp_0123456789abcdefghijABCDEFGHIJ")', 'push("***")'),
    ('h = "Bearer abcdef.123456"', 'h = "***"'),
    ('jwt = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc-def"', 'jwt = "***"'),
    ('pem = "-----BEGIN RSA PRIVATE KEY-----MIIE"', 'pem = "***'),
    ("api_key = 'unterminated", "api_key = '***'"),
]


@pytest.mark.parametrize(("line", "expected"), SECRETS)
def test_secrets_in_lines_are_masked(line, expected):
    from sm_profiler.hook.secrets import masked

    assert masked(line) == expected


@pytest.mark.parametrize(
    "line",
    [
        "loss = model(x, token_type_ids=ids)",
        "tokens = tokenizer(text, max_length=512)",
        'batch["input_ids"] = tokens.to(device)',
        "password = getpass()",
        'loader = torch.load("checkpoints/model-0123456789abcdef.pt")',
        "for key, value in state.items():",
        'sha = "da39a3ee5e6b4b0d3255bfef95601890afd80709"',
    ],
)
def test_ordinary_lines_stay(line):
    from sm_profiler.hook.secrets import masked

    assert masked(line) == line


def test_a_recorded_line_has_no_secret(tmp_path):
    from sm_profiler.hook.stacks import source_line

    path = tmp_path / "train.py"
    path.write_text(f'{" " * 40}login(token="{"x" * 500}"); train()\n')
    assert source_line(str(path), 1) == 'login(token="***"); train()'
    long = "password = '" + "y" * 100_000
    path = tmp_path / "long.py"
    path.write_text(long)
    assert "y" not in source_line(str(path), 1)
