"""A hook that is off stays ready: a changed configuration file starts it in the middle of the training."""

import json
import os
import subprocess
import sys
import time
from threading import Thread

import pytest
import torch

from sm_profiler import threads
from sm_profiler.formats.trace_recovery import recover_traces
from sm_profiler.hook import entry, settings
from sm_profiler.hook.settings import ConfigText, Standby, in_framework, is_busy, read_config, running_call
from sm_profiler.report import build_report
from sm_profiler.source import open_source
from tests.support.hook import environment

OFF = [{"ProfilingIntervalInMilliseconds": 1000}, {"ProfilingParameters": {}}, {"DisableProfiler": True}]
PATIENCE = 60.0  # seconds, on a busy machine
RECORDING = {"sm-profiler", "sm-profiler sampler"}  # threads


def write(path, config):
    """Write a configuration as the service does, with another time."""
    before = path.stat().st_mtime_ns if path.exists() else 0
    path.write_text(json.dumps(config))
    os.utime(path, ns=(before + 1_000_000_000, before + 1_000_000_000))


def train(steps):
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(settings, "SECONDS", 0.01)
    monkeypatch.setattr(settings, "AGAIN_SECONDS", 0.005)
    yield
    entry.uninstall()


@pytest.mark.first(1)
@pytest.mark.parametrize("off", OFF)
def test_framework_metrics_are_switched_on_in_a_running_job(quick, off, tmp_path, monkeypatch, caplog):
    path = tmp_path / "profilerconfig.json"
    write(path, off)
    monkeypatch.setenv("SM_PROFILER_CONFIG", str(path))
    backward = torch.autograd.backward
    assert entry.install() is None
    train(3)
    assert torch.autograd.backward is backward  # nothing is patched
    write(path, {"ProfilingParameters": {"LocalPath": str(tmp_path / "profile")}})
    end = time.monotonic() + PATIENCE
    while (hook := entry.get_hook(create=False)) is None:
        assert time.monotonic() < end
        time.sleep(0.001)
    train(20)
    hook.session.tracker.end_step()
    assert hook.session.guard.failures == {}
    assert hook.session.tracker.global_step == 18  # it may have begun in the middle of the first
    assert [one.getMessage() for one in caplog.records if "changed" in one.getMessage()] == [
        "sm-profiler: the configuration changed: the hook has started, and counts the steps that begin from here on"
    ]
    until(lambda: "sm-profiler standby" not in threads.running().values())


@pytest.mark.parametrize("parameters", [True, False])
def test_a_job_that_begins_disabled_gets_a_monitor_when_it_is_switched_on(parameters, tmp_path):
    """Its system metrics were missing to the end."""
    path, folder = tmp_path / "profilerconfig.json", tmp_path / "profile"
    path.write_text(json.dumps({"DisableProfiler": True}))
    given = {"LocalPath": str(folder)} if parameters else {}
    script = f"""
import json, os, sys, time
from pathlib import Path
from sm_profiler.hook import entry, settings
settings.SECONDS = 0.05
assert entry.install() is None and not settings._joined
time.sleep(0.1)
Path({str(path)!r}).write_text({json.dumps({"ProfilingIntervalInMilliseconds": 100, "ProfilingParameters": given})!r})
end = time.monotonic() + {PATIENCE}
while not list(Path({str(tmp_path)!r}).rglob("*.algo-1.json.tmp")):
    assert time.monotonic() < end
    time.sleep(0.05)
"""
    more = {"SM_PROFILER_AUTO": "1", "SM_PROFILER_CONFIG": str(path), "SM_PROFILER_ROOT": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(**more), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.rglob("system/incremental/*/*.algo-1.json"))


def test_a_configuration_that_stays_off_or_is_broken_starts_nothing(tmp_path):
    path = tmp_path / "profilerconfig.json"
    write(path, OFF[0])
    one = Standby(read_config(path), pytest.fail)
    assert one.changed() is None
    write(path, OFF[2])
    assert one.changed() is None
    path.write_text("{half")
    assert one.changed() is None
    path.unlink()
    assert one.changed() is None
    write(path, {"ProfilingParameters": {"LocalPath": "/x"}})
    assert one.changed()[0].local_path == "/x"


def test_nothing_starts_while_a_framework_runs():
    """A loop over torch's own tables must not see them change."""
    started = []
    one = Standby(ConfigText(""), lambda *_: started.append(sys._getframe()))
    one._ready = (None, ConfigText(""))
    assert not in_framework()
    names = {"__name__": "torch.optim.optimizer", "call": one._on_main_thread}
    exec("def step():\n    call()", names)  # noqa: S102 - a function of another module
    names["step"]()
    assert not started
    one._on_main_thread()
    one._on_main_thread()
    assert len(started) == 1


@pytest.mark.parametrize(
    ("module", "busy"),
    [
        ("torch", True), ("torch.optim.optimizer", True), ("torch.nn.modules.module", True), ("torch.autograd", True),
        ("torch.utils.database", True), ("keras.src.trainers.trainer", True), ("importlib._bootstrap", True),
        ("tensorflow.python.eager.polymorphic_function.polymorphic_function", True), ("__main__", False), ("torchvision", False),
        ("torch.utils.data.dataloader", False), ("torch.utils.data._utils.pin_memory", False), ("torch.utils.data", False),
        ("torch.multiprocessing.spawn", False), ("torch.distributed.elastic.multiprocessing.errors", False),
        ("torch.utils._contextlib", False), ("torch._inductor.compile_worker.subproc_pool", False),
        ("tensorflow.python.ops.script_ops", False), ("keras.src.trainers.data_adapters.py_dataset_adapter", False),
    ],
)  # fmt: skip
def test_modules_in_which_the_hook_may_start(module, busy):
    """Code that fetches batches, starts processes or calls the script's functions is around most of it, or all."""
    assert is_busy(module) is busy


LOOPS = {
    "input": """
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4 * 30
    def __getitem__(self, index):
        for _ in range(5):
            time.sleep(0.001)
        return torch.full((4,), float(index)), index % 2
def train(step):
    for x, y in torch.utils.data.DataLoader(Rows(), batch_size=4):
        step(x, y)
""",
    "batches": """
rows = torch.arange(480.0).reshape(120, 4), torch.zeros(120, dtype=torch.long)
def train(step):
    for x, y in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*rows), batch_size=4):
        step(x, y)
""",
    "plain": """
batches = [(torch.full((4, 4), float(number)), torch.zeros(4, dtype=torch.long)) for number in range(30)]
def train(step):
    for x, y in batches:
        step(x, y)
""",
    "closure": """
batches = [(torch.full((4, 4), float(number)), torch.zeros(4, dtype=torch.long)) for number in range(30)]
def train(step):
    for x, y in torch.utils.data.DataLoader(batches, batch_size=None):
        def closure():
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss
        losses.append(float(optimizer.step(closure)))
""",
}
TRAINS = (
    """
import json, os, sys, time
import torch
from sm_profiler.hook import entry, settings
settings.SECONDS = 0.02
polls = sys.argv[1] == "polls"
if not polls:  # the interpreter makes no pending call at a good moment
    settings.Standby._on_main_thread = lambda self, _=None: self._asked.set() or 0
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.001)
losses = []
def step(x, y):
    optimizer.zero_grad(); loss = torch.nn.functional.cross_entropy(model(x), y); loss.backward(); optimizer.step()
    losses.append(loss.item())
"""
    "{loop}"
    """
entry.install()
path, on = os.environ["SM_PROFILER_CONFIG"], os.environ.get("ON")
began = None
for epoch in range(400):
    train(step)
    if epoch == 0 and on:
        open(path + ".new", "w").write(on)
        os.utime(path + ".new", ns=(1, 1))
        os.replace(path + ".new", path)
    if began is None and entry.get_hook(create=False) is not None:
        began = epoch
    if epoch >= 3 and (not on or (began is not None and epoch >= began + 2)):
        break
print(json.dumps([epoch, began, losses]))
"""
)


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("loop", "how"),
    [("input", "polls"), ("input", "calls"), ("batches", "calls"), ("plain", "calls"), ("closure", "calls")],
)
def test_the_hook_starts_in_any_loop_and_changes_no_loss(loop, how, tmp_path):
    """A loop that waits for data in its own process is always in the DataLoader, and others call frameworks only."""
    script, config, folder = tmp_path / "train.py", tmp_path / "config.json", tmp_path / "profile"
    script.write_text(TRAINS.replace("{loop}", LOOPS[loop]))
    off, on = json.dumps({"DisableProfiler": True}), json.dumps({"ProfilingParameters": {"LocalPath": str(folder)}})

    def run(**more):
        config.write_text(off)
        command = [sys.executable, str(script), how]
        done = subprocess.run(
            command, env=environment(SM_PROFILER_CONFIG=str(config), **more), capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout), done.stderr

    (last, began, losses), log = run(ON=on)
    assert began is not None, log
    assert "the hook has started" in log
    (_, never, plain), _ = run()
    assert never is None
    shared = min(len(plain), len(losses))
    assert losses[:shared] == plain[:shared]
    steps, phases = steps_and_phases(folder)
    assert 30 <= steps <= 30 * (last + 1)
    incomplete = {
        number: names for number, names in phases.items() if not {"forward", "backward", "optimizer"} <= names
    }
    assert not incomplete


def steps_and_phases(folder):
    """Return the number of recorded steps, and the phases of each."""
    events = [event for file in folder.rglob("*_pythontimeline.json") for event in json.loads(file.read_text())]
    steps, phases, rows = 0, {}, {}
    for event in events:
        if event["ph"] == "M" and event["name"] == "process_name":
            rows[event["pid"]] = event["args"].get("name", "")
    for event in events:
        if event["ph"] != "X":
            continue
        if event["name"].startswith("Step:"):
            steps += 1
        number = event["args"].get("step_num")
        row = rows.get(event["pid"], "").lower()
        for name in ("forward", "backward", "optimizer"):
            if name in row:
                phases.setdefault(number, set()).add(name)
    return steps, phases


NEVER = r"""
import os, time, types, sys
from sm_profiler.hook import entry, settings
settings.SECONDS, settings.PATIENCE = 0.02, 0.1
entry.install()
path = os.environ["SM_PROFILER_CONFIG"]
open(path, "w").write(os.environ["ON"])
os.utime(path, ns=(1, 1))
inside = types.ModuleType("keras.loop")
exec(r"import time\ndef fit():\n for _ in range(1000):\n  time.sleep(0.001)".replace(r"\n", chr(10)), vars(inside))
inside.fit()
"""


def test_a_script_that_sleeps_is_no_framework():
    """The log had that a framework's code runs, and the main thread was in the script's own time.sleep()."""
    found = []
    asks = Thread(target=lambda: (time.sleep(0.2), found.append(running_call())))
    asks.start()
    time.sleep(1.0)
    asks.join()
    line = test_a_script_that_sleeps_is_no_framework.__code__.co_firstlineno + 5
    assert found == [f"line {line} of test_hook_standby.py"]


def test_a_hook_without_a_moment_to_start_reports_that(tmp_path):
    """The log had that it starts, and the report that no framework was found."""
    script, config, folder = tmp_path / "train.py", tmp_path / "config.json", tmp_path / "profile"
    script.write_text(NEVER)
    config.write_text(json.dumps({"DisableProfiler": True}))
    on = json.dumps({"ProfilingParameters": {"LocalPath": str(folder)}})
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment(SM_PROFILER_CONFIG=str(config), ON=on),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "the hook has started" not in done.stderr
    assert "the hook waits to start: keras fit() runs" in done.stderr
    assert "the hook did not start: keras fit() ran until the process ended" in done.stderr
    recover_traces(folder, stopped=False)
    main = build_report(open_source(str(folder))).verdict.main
    assert "found no moment to start" in main.headline


def test_a_hook_that_had_to_wait_for_a_moment_reports_for_what(tmp_path):
    """A loop inside a framework, as Keras's fit, is left out as a whole."""
    script, config, folder = tmp_path / "train.py", tmp_path / "config.json", tmp_path / "profile"
    script.write_text(f"{NEVER}\nimport torch\n{LATE_LOOP}")
    config.write_text(json.dumps({"DisableProfiler": True}))
    on = json.dumps({"ProfilingParameters": {"LocalPath": str(folder)}})
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment(SM_PROFILER_CONFIG=str(config), ON=on), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "the hook has started" in done.stderr
    _, (state,) = end_of_steps(folder)
    assert state == "switched on while the job ran, and started when keras fit() was over"


LATE_LOOP = """
while entry.get_hook(create=False) is None:
    time.sleep(0.001)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(5):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""


def test_a_configuration_of_the_environment_cannot_change(quick, monkeypatch):
    monkeypatch.setenv("SM_PROFILER_CONFIG", json.dumps(OFF[1]))
    assert entry.install() is None
    assert not entry._waiting


def until(what):
    end = time.monotonic() + PATIENCE
    while not (found := what()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


def end_of_steps(folder):
    """Return the number of recorded steps, and the states of the profiler."""
    events = [event for file in folder.rglob("*_pythontimeline.json") for event in json.loads(file.read_text())]
    steps = sum(event["name"].startswith("Step:") and event["ph"] == "X" for event in events)
    return steps, {text for event in events if (text := event["args"].get("collectors", {}).get("profiler"))}


@pytest.mark.first(1)
@pytest.mark.parametrize("off", OFF)
def test_everything_is_switched_off_and_on_again_in_a_running_job(quick, off, tmp_path, monkeypatch):
    path, folder = tmp_path / "profilerconfig.json", tmp_path / "profile"
    on = {"ProfilingParameters": {"LocalPath": str(folder)}}
    write(path, on)
    monkeypatch.setenv("SM_PROFILER_CONFIG", str(path))
    before = threads.running().keys()  # of other tests
    first = entry.install().session
    train(4)
    write(path, off)
    until(lambda: first._next_profile)
    train(5)  # the first of these steps is not recorded any more
    assert first.quiet
    until(lambda: not first._retired.is_alive())
    until(lambda: not RECORDING & {name for number, name in threads.running().items() if number not in before})
    steps, (state,) = end_of_steps(folder)
    assert steps == 4
    assert state.startswith("switched off before step 4 by a change of the configuration: ")
    assert not list(folder.rglob("*.tmp"))
    write(path, on)
    until(lambda: entry.get_hook(create=False).session is not first)
    train(6)
    entry.uninstall()
    assert end_of_steps(folder)[0] == 9  # the first of the six may have begun before
    report = build_report(open_source(str(folder)))
    (rank,) = report.metrics.ranks
    assert (rank.attempts.count, rank.attempts.breaks, rank.attempts.down_s) == (1, (4,), 0.0)
    assert report.switched_off_alarm.startswith("The profiler was switched off for ")
    assert ", after 4 recorded steps: " in report.switched_off_alarm


SWITCHED_OFF = """
import json, os, sys, time, torch
from sm_profiler.hook import entry
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
session = entry.get_hook(create=False).session
def train():
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
train()
path = os.environ["SM_PROFILER_CONFIG"]
open(path, "w").write('{"DisableProfiler": true}')
os.utime(path, ns=(1, 1))
while not session.quiet:
    train()
    time.sleep(0.01)
"""


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("last", "end"),
    [
        ("raise ValueError('x')", {"end": "crashed", "end_code": 1, "end_error": "ValueError: x"}),
        ("sys.exit(7)", {"end": "crashed", "end_code": 7}),
        ("pass", {"end": "exited"}),
    ],
)
def test_the_end_of_a_process_is_recorded_after_the_switch(last, end, tmp_path):
    script, config, folder = tmp_path / "train.py", tmp_path / "config.json", tmp_path / "profile"
    script.write_text(SWITCHED_OFF + last)
    config.write_text(json.dumps({"ProfilingParameters": {"LocalPath": str(folder)}}))
    command = [sys.executable, "-m", "sm_profiler.hook.launch", str(script)]
    subprocess.run(command, env=environment(SM_PROFILER_CONFIG=str(config)), check=False, stderr=subprocess.DEVNULL)
    recover_traces(folder, stopped=False)
    records = [
        event["args"]
        for file in folder.rglob("*_pythontimeline.json")
        for event in json.loads(file.read_text())
        if "end" in event["args"]
    ]
    assert any(one.items() >= end.items() for one in records)
