"""Ends as the hook, the recovery of open files and the state of a run record them."""

import json
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from sm_profiler.formats.layout import EXIT_FOLDER, IGNORED_FOLDER, LOADING_FOLDER, STOP_FOLDER
from sm_profiler.formats.process_end import MAX_ERROR
from sm_profiler.formats.trace_recovery import recover_traces
from sm_profiler.hook.process_end import line_and_place
from sm_profiler.limits import Limits
from sm_profiler.metrics.ends import EndFacts, end_of, rank_ends
from sm_profiler.monitor.run_state import RunState, read_state, write_state
from tests.support.hook import environment

WATCH = """
import atexit, json, multiprocessing, multiprocessing.util, os, sys
from sm_profiler.hook.process_end import how_it_ends
def shown():
    os.write(1, json.dumps(how_it_ends()).encode())
"""


@pytest.mark.parametrize(
    ("script", "ends", "code"),
    [
        ("pass", {"end": "exited"}, 0),
        ("raise ValueError('a\\nb')", {"end": "crashed", "end_error": "ValueError: a", "end_place": "script.py:7", "end_code": 1}, 1),
        ("sys.exit(3)", {"end": "exited"}, 3),
        ("raise KeyboardInterrupt", {"end": "stopped", "end_error": "KeyboardInterrupt"}, -signal.SIGINT),
        ("raise ValueError('no access with ' + 'AKIA' + 'IOSFODNN7EXAMPLE')", {"end": "crashed", "end_error": "ValueError: no access with ***", "end_place": "script.py:7", "end_code": 1}, 1),
        ("try:\n    1 / 0\nexcept ArithmeticError:\n    pass", {"end": "exited"}, 0),
        ("sys.last_value = ValueError('shown by a library')", {"end": "exited"}, 0),
        ("import json\njson.loads('{')", {"end": "crashed", "end_error": "json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)", "end_place": "script.py:8", "end_code": 1}, 1),
        ("sys.excepthook = lambda *_: None\nraise OSError(2, 'gone')", {"end": "crashed", "end_error": "FileNotFoundError: [Errno 2] gone", "end_place": "script.py:8", "end_code": 1}, 1),
    ],
)  # fmt: skip
def test_the_end_of_a_script(tmp_path, script, ends, code):
    path = tmp_path / "script.py"
    path.write_text(f"{WATCH}atexit.register(shown)\n{script}\n")
    found = subprocess.run([sys.executable, str(path)], capture_output=True, check=False)
    assert (json.loads(found.stdout), found.returncode) == (ends, code)


@pytest.mark.parametrize(
    ("body", "ends"),
    [
        ("raise ValueError('x')", {"end": "crashed", "end_error": "ValueError: x", "end_place": "script.py:8", "end_code": 1}),
        ("try:\n    1 / 0\nexcept ZeroDivisionError:\n    sys.exit(1)", {"end": "crashed", "end_error": "ZeroDivisionError: division by zero", "end_place": "script.py:9", "end_code": 1}),
        ("sys.exit(0)", {"end": "completed", "end_code": 0}),
        ("pass", {"end": "exited"}),
    ],
)  # fmt: skip
def test_the_end_of_a_process_of_multiprocessing(tmp_path, body, ends):
    path = tmp_path / "script.py"
    path.write_text(
        f"{WATCH}def work():\n    multiprocessing.util.Finalize(None, shown, exitpriority=10)\n{textwrap.indent(body, '    ')}\n"
        "one = multiprocessing.get_context('fork').Process(target=work)\none.start()\none.join()\n"
    )
    found = subprocess.run([sys.executable, str(path)], capture_output=True, check=True)
    assert json.loads(found.stdout) == ends


LEAVE = """
import json, os, sys
from pathlib import Path
from sm_profiler.hook.process_end import record_exit_code
record_exit_code(Path(sys.argv[1]), "1-algo-1", {"rank": 1, "end": "exited", "end_us": 1_700_000_000_000_015})
"""


@pytest.mark.parametrize(
    ("statement", "stopped", "end"),
    [
        ("sys.exit(3)", False, ("crashed", 3)), ("sys.exit('a message')", False, ("crashed", 1)), ("sys.exit(259)", False, ("crashed", 3)),
        ("sys.exit(143)", False, ("stopped", 143)), ("sys.exit(1)", True, ("stopped", 1)), ("sys.exit(0)", False, None), ("pass", False, None),
        ("os._exit(3)", False, None),
    ],
)  # fmt: skip
def test_the_exit_code_of_a_process_that_left_by_itself(tmp_path, statement, stopped, end):
    subprocess.run([sys.executable, "-c", f"{LEAVE}{statement}", str(tmp_path)], check=False, stderr=subprocess.DEVNULL)
    (left,) = (tmp_path / EXIT_FOLDER).iterdir()
    assert recover_traces(tmp_path, "algo-2", stopped=stopped) == 0  # of another node
    assert recover_traces(tmp_path, "algo-1", stopped=stopped) == (end is not None)
    assert not left.exists()
    found = [json.loads(path.read_text())[0]["args"] for path in (tmp_path / "framework").rglob("*.json")]
    assert [(one["end"], one["end_code"], one["rank"]) for one in found] == ([(*end, 1)] if end else [])


TRAINING = """
import sys, torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(5):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.first(1)
@pytest.mark.parametrize(("code", "end"), [(3, {"end": "crashed", "end_code": 3, "end_step": 5}), (0, None)])
def test_the_exit_code_of_a_training(tmp_path, code, end):
    script, profile = tmp_path / "train.py", tmp_path / "profile"
    script.write_text(TRAINING)
    config = json.dumps({"ProfilingParameters": {"LocalPath": str(profile)}})
    command = [sys.executable, "-m", "sm_profiler.hook.launch", str(script), str(code)]
    assert subprocess.run(command, env=environment(SM_PROFILER_CONFIG=config), check=False).returncode == code
    before = set(profile.rglob("*_pythontimeline.json"))
    assert recover_traces(profile, stopped=False) == (end is not None)
    assert not list((profile / EXIT_FOLDER).iterdir())
    records = [json.loads(one.read_text())[0]["args"] for one in set(profile.rglob("*_pythontimeline.json")) - before]
    assert [one.items() >= end.items() for one in records] == ([True] if end else [])


WAITING = """
import os, signal, sys, time, torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(5):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
time.sleep(1.5)  # until the records are written
exec(sys.argv[1])
print("ready", flush=True)
time.sleep(60)
"""
CHILD = "child = os.fork()\nif not child:\n    time.sleep(60)\nos.kill(child, signal.SIGTERM)\nos.waitpid(child, 0)"
OWN = "signal.signal(signal.SIGTERM, lambda *_: os._exit(7))"


@pytest.mark.first(3)
@pytest.mark.parametrize(
    ("statement", "number", "code", "end"),
    [
        ("pass", signal.SIGTERM, -signal.SIGTERM, "stopped"),
        ("pass", signal.SIGHUP, -signal.SIGHUP, "stopped"),
        ("pass", signal.SIGKILL, -signal.SIGKILL, "killed"),
        (CHILD, signal.SIGKILL, -signal.SIGKILL, "killed"),  # the child was stopped
        ("signal.signal(signal.SIGTERM, signal.SIG_IGN)\nos.kill(os.getpid(), 15)", signal.SIGKILL, -9, "killed"),
        (OWN, signal.SIGTERM, 7, "crashed"),
        (f"{OWN}\nif not (child := os.fork()):\n    os.kill(os.getpid(), 15)\nassert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7", signal.SIGKILL, -9, "killed"),
    ],
)  # fmt: skip
def test_a_process_that_is_asked_to_stop_was_not_just_killed(tmp_path, statement, number, code, end):
    """The signal comes long before the monitor learns that the job is to end."""
    script, profile = tmp_path / "train.py", tmp_path / "profile"
    script.write_text(WAITING)
    config = json.dumps({"ProfilingParameters": {"LocalPath": str(profile)}})
    command = [sys.executable, "-m", "sm_profiler.hook.launch", str(script), statement]
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored, and processes inherit that
    try:
        process = subprocess.Popen(command, env=environment(SM_PROFILER_CONFIG=config), stdout=subprocess.PIPE)
    finally:
        signal.signal(signal.SIGHUP, before)
    with process:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.wait() == code
    recover_traces(profile, stopped=False)
    files = [json.loads(path.read_text()) for path in profile.rglob("*_pythontimeline.json")]
    records = [event["args"] for events in files for event in events if event["name"] == "sm_profiler/process"]
    assert [one["end"] for one in records if one["pid"] == process.pid and "end" in one] == [end]


LOADING = """import sys, time, torch
def load():
    print("ready", flush=True)
    time.sleep(60)
load()
"""


@pytest.mark.first(1)
@pytest.mark.parametrize("rank", [None, 1])
def test_a_process_that_is_asked_to_stop_before_its_first_step_has_the_line(tmp_path, rank):
    script, profile = tmp_path / "train.py", tmp_path / "profile"
    script.write_text(LOADING)
    (profile / IGNORED_FOLDER).mkdir(parents=True)
    config = json.dumps({"ProfilingParameters": {"LocalPath": str(profile)}})
    command = [sys.executable, "-m", "sm_profiler.hook.launch", str(script)]
    ranks = {} if rank is None else {"RANK": str(rank), "WORLD_SIZE": "2"}
    variables = environment(SM_PROFILER_CONFIG=config, **ranks)
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        until = time.monotonic() + 60
        while not list((profile / LOADING_FOLDER).glob("*")) and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.5)  # the handler follows the file
        process.terminate()
        assert process.wait() == -signal.SIGTERM
    assert (
        recover_traces(profile, stopped=False) == 0
    )  # a launcher that ends the other ranks: the first one is the cause
    assert recover_traces(profile, stopped=True) == 1
    (path,) = profile.rglob("*_pythontimeline.json")
    record = json.loads(path.read_text())[0]["args"]
    assert (record["end"], record["end_step"], record["end_place"]) == ("stopped", 0, "train.py:4")
    assert record.get("rank") == rank
    (end,) = rank_ends([record], {})
    sentence = end_of(EndFacts(run="stopped", exit_code=143), (end,)).sentence
    assert sentence == "The script was stopped by SIGTERM before its first training step, at train.py:4."


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("statement", "rank", "end"),
    [
        ("raise ValueError('no data')", "1", {"rank": 1, "end": "crashed", "end_code": 1, "end_error": "ValueError: no data", "end_place": "train.py:2", "end_step": 0}),
        ("import sys\nsys.exit(3)", "1", {"rank": 1, "end": "crashed", "end_code": 3, "end_step": 0}),
        ("pass", "1", None),
        ("raise ValueError('no data')", "", {"rank": None, "end": "crashed", "end_code": 1, "end_error": "ValueError: no data", "end_place": "train.py:2", "end_step": 0}),
        ("import argparse\nargparse.ArgumentParser().parse_args(['--no'])", "", {"end": "crashed", "end_code": 2, "end_step": 0}),
        ("raise MemoryError", "", {"end": "crashed", "end_error": "MemoryError"}),
        ("raise KeyboardInterrupt", "", {"end": "stopped", "end_error": "KeyboardInterrupt"}),
        ("import signal\nfrom torch.distributed.elastic.multiprocessing.api import SignalException\nraise SignalException('15', signal.SIGTERM)", "", {"rank": None, "end": "stopped", "end_step": 0}),
        ("import signal\nfrom torch.distributed.elastic.multiprocessing.api import SignalException\nraise SignalException('3', signal.SIGQUIT)", "", {"end": "crashed", "end_code": 1}),
        ("import os\nos._exit(4)", "", {"end": "crashed", "end_code": 4, "end_step": 0}),
        ("import sys\nsys.exit(0)", "", None),
        ("import os\nos._exit(0)", "", None),
        ("import os, subprocess, sys\nsubprocess.run([sys.executable, '-m', 'sm_profiler.hook.launch', 'of.py'], env={**os.environ, 'RANK': '1'})\nraise ValueError('of a launcher')", "", {"rank": 1, "end_error": "ValueError: of a rank"}),
    ],
)  # fmt: skip
def test_a_process_that_fails_before_its_first_step_is_recorded(tmp_path, statement, rank, end):
    script, profile = tmp_path / "train.py", tmp_path / "profile"
    script.write_text(f"import torch\n{statement}\n")
    (tmp_path / "of.py").write_text("import torch\nraise ValueError('of a rank')\n")
    (profile / IGNORED_FOLDER).mkdir(parents=True)  # of a job
    config = json.dumps({"ProfilingParameters": {"LocalPath": str(profile)}})
    command = [sys.executable, "-m", "sm_profiler.hook.launch", str(script)]
    variables = environment(SM_PROFILER_CONFIG=config, **({"RANK": rank, "WORLD_SIZE": "2"} if rank else {}))
    subprocess.run(command, env=variables, cwd=tmp_path, check=False, timeout=120)
    recover_traces(profile, stopped=False)
    files = [json.loads(path.read_text()) for path in profile.rglob("*_pythontimeline.json")]
    records = [event["args"] for events in files for event in events if event["name"] == "sm_profiler/process"]
    assert [one.items() >= end.items() for one in records] == ([True] if end else [])


FORKING = """
import os, sys, torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def train(steps):
    for _ in range(steps):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
train(int(sys.argv[1]))
if not (child := os.fork()):
    train(7)
    exec(sys.argv[2])
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.first(1)
@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize(
    ("statement", "end"),
    [
        ("os._exit(3)", {"end": "crashed", "end_code": 3, "end_step": 7}),
        ("os._exit(status=0)", {"end": "completed", "end_code": 0, "end_step": 7}),
        ("try:\n    1 / 0\nexcept ArithmeticError:\n    os._exit(1)", {"end": "crashed", "end_code": 1, "end_error": "ZeroDivisionError: division by zero"}),
        ("try:\n    os._exit('no code')\nexcept TypeError:\n    train(2)\n    os._exit(4)", {"end_code": 4, "end_step": 9}),
    ],
)  # fmt: skip
def test_a_child_that_leaves_without_exit_functions_keeps_its_steps(tmp_path, before, statement, end):
    """Its steps of the last second were lost, all of a short training's, and it counted as killed."""
    script, profile = tmp_path / "train.py", tmp_path / "profile"
    script.write_text(FORKING)
    config = json.dumps({"ProfilingParameters": {"LocalPath": str(profile)}})
    command = [sys.executable, "-m", "sm_profiler.hook.launch", str(script), str(before), statement]
    done = subprocess.run(command, env=environment(SM_PROFILER_CONFIG=config), check=False, timeout=120)
    assert done.returncode == end["end_code"]
    files = [json.loads(path.read_text()) for path in profile.rglob("*_pythontimeline.json")]
    records = [event["args"] for events in files for event in events if event["name"] == "sm_profiler/process"]
    (child,) = [one for one in records if one.get("end_step") == end.get("end_step", 7)]
    assert child.items() >= end.items()
    of_child = [
        event for events in files for event in events
        if event["name"] == "Step:ModeKeys.TRAIN" and event["args"]["pid"] == child["pid"]
    ]  # fmt: skip
    assert len(of_child) == child["end_step"]


def test_a_process_that_leaves_without_exit_functions_has_its_windows_converted(tmp_path):
    """`sm-profiler run` had returned before, so that a report right after it lacked what the window recorded."""
    script, profile = tmp_path / "train.py", tmp_path / "profile"
    script.write_text(FORKING.replace("if not (child := os.fork()):", "if True:"))
    window = json.dumps({"StartStep": 1, "NumSteps": 2})
    config = json.dumps({"ProfilingParameters": {"LocalPath": str(profile), "DetailedProfilingConfig": window}})
    command = [sys.executable, "-m", "sm_profiler.hook.launch", str(script), "5", "os._exit(0)"]
    subprocess.run(command, env=environment(SM_PROFILER_CONFIG=config), check=True, timeout=120)
    assert list(profile.rglob("*.trace.json.gz"))


def test_the_record_of_a_living_process_waits_for_its_exit_code(tmp_path):
    command = [sys.executable, "-c", f"{LEAVE}print(flush=True)\nsys.stdin.read()\nsys.exit(7)", str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert recover_traces(tmp_path, "algo-1", stopped=False) == 0
        process.stdin.close()
        process.wait()
    assert recover_traces(tmp_path, "algo-1", stopped=False) == 1


@pytest.mark.parametrize("content", [b"", b"{\n\x03", b"[]\n\x03", b'{"end_us": null}\n\x03', b"\xff\n\xff"])
def test_a_damaged_record_of_an_exit_code_is_no_error(tmp_path, content):
    (tmp_path / EXIT_FOLDER).mkdir(parents=True)
    (tmp_path / EXIT_FOLDER / "1-algo-1_999999999_5").write_bytes(content)
    assert recover_traces(tmp_path, stopped=False) == 0
    assert not (tmp_path / "framework").exists()


class ExitingError(Exception):
    """One whose text ends the process."""

    def __str__(self):
        raise SystemExit(9)


ODD_ERROR = """
import atexit
from sm_profiler.hook.process_end import how_it_ends

class OddError(Exception):
    def __str__(self):
        print("read", flush=True)
        return "odd"

def end():
    assert how_it_ends()["end_error"] == "OddError: odd"

atexit.register(end)
raise OddError
"""


def line_of(error):
    return line_and_place(error, str)[0]


def test_errors_are_one_bounded_line():
    class OfTheScriptError(Exception):
        def __str__(self):
            raise ValueError

    assert line_of(OfTheScriptError()).endswith("OfTheScriptError")
    assert line_of(ExitingError()).endswith("ExitingError")
    assert line_of(ValueError("\n\n  first\x1b[31m\nsecond")) == "ValueError: first\\x1b[31m"
    assert len(line_of(ValueError("x" * 10_000))) == MAX_ERROR
    assert line_of(RuntimeError()) == "RuntimeError"


def test_what_failed_in_a_worker_has_its_own_reason_and_line():
    """torch raises it again with the worker's traceback as its message, whose first line names only the worker."""
    frames = "".join(
        f'  File "/x/site-packages/torch/utils/{one}.py", line {one}, in fetch\n    {"~" * 90}\n' for one in range(60)
    )
    script = '  File "/code/data.py", line 8, in __getitem__\n    return float(text)\n           ^^^^^^^^^^^\n'
    text = f"Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n{frames}{script}"
    error = ValueError(f"{text}ValueError: could not convert string to float: 'n/a'\n")
    assert line_and_place(error, str) == ("ValueError: could not convert string to float: 'n/a'", "data.py:8")


def test_the_text_of_the_last_exception_is_read_once(tmp_path):
    """It is code of the script: what it prints is in the output each time."""
    script = tmp_path / "train.py"
    script.write_text(ODD_ERROR)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.stdout == "read\n" * 2, done.stderr  # once by Python


def left_open(root, **args):
    """Write the open file of a process that is gone; return where its file will be."""
    folder = root / "framework" / "pevents"
    folder.mkdir(parents=True)
    process = {"rank": 1, "pid": 7, "oom_kills": 3, **args}
    lines = [
        {"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": 1_700_000_000_000_000}},
        {"name": "sm_profiler/process", "ph": "M", "pid": 0, "args": process},
        {"name": "Step:ModeKeys.TRAIN", "ph": "X", "pid": 1, "ts": 5, "dur": 10, "args": {}},
    ]  # fmt: skip
    text = "[\n" + ",\n".join(json.dumps(line) for line in lines) + ',\n{"name": "cut'
    (folder / "1-algo-1_pythontimeline_999999999_0_1.json.tmp").write_text(text)
    return folder


def ends_in(folder):
    (file,) = folder.rglob("*_pythontimeline.json")
    records = [one["args"] for one in json.loads(file.read_text()) if one["name"] == "sm_profiler/process"]
    assert all(one["rank"] == 1 for one in records)
    return [(one.get("end"), one.get("end_us")) for one in records if "end" in one]


@pytest.mark.parametrize(
    ("stopped", "kills", "end"), [(True, 4, "stopped"), (False, 3, "killed"), (False, 4, "out_of_memory")]
)
def test_a_process_that_left_its_file_open(tmp_path, monkeypatch, stopped, kills, end):
    monkeypatch.setattr("sm_profiler.formats.trace_recovery.oom_kills", lambda: kills)
    folder = left_open(tmp_path)
    assert recover_traces(tmp_path, "algo-1", stopped=stopped) == 1
    assert ends_in(folder) == [(end, 1_700_000_000_000_015)]


STACK = """Current thread 0x00007f3e (most recent call first):
  File "/usr/lib/python3.11/socket.py", line 720 in readinto
  File "/opt/checkout/sm_profiler/hook/patches.py", line 269 in called
  File "/job/train.py", line 6 in fetch
  File "/job/train.py", line 10 in <module>
"""


def test_where_a_signal_found_a_process_that_had_made_steps_is_recorded(tmp_path):
    """Samples of its last seconds are lost, and the place was the profiler's own file."""
    folder = left_open(tmp_path)
    mark(tmp_path, STACK)
    recover_traces(tmp_path, "algo-1", stopped=False)
    (file,) = folder.rglob("*_pythontimeline.json")
    (record,) = [one["args"] for one in json.loads(file.read_text()) if "end" in one.get("args", {})]
    assert (record["end"], record["end_code"], record["end_place"]) == ("stopped", 143, "train.py:6")
    assert not list((tmp_path / STOP_FOLDER).iterdir())


def mark(root, stack, pid=999999999):
    path = root / STOP_FOLDER / f"1-algo-1_{pid}_15"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"node": "algo-1", "rank": 1, "pid": pid, "start_us": 5}) + "\n" + stack)


@pytest.mark.parametrize(("stack", "count"), [(STACK, 1), ("", 0)])
def test_a_signal_that_finds_no_open_file_is_recorded(tmp_path, stack, count):
    """A hang's stacks are in a file that is finished at once, so that it is uploaded."""
    mark(tmp_path, stack)
    assert recover_traces(tmp_path, stopped=None) == count
    assert recover_traces(tmp_path, stopped=None) == 0
    records = [json.loads(path.read_text())[0]["args"] for path in tmp_path.rglob("*_pythontimeline.json")]
    assert [(one["end"], one["end_code"], one["start_us"]) for one in records] == [("stopped", 143, 5)] * count


def test_copies_of_open_files_have_no_end(tmp_path):
    folder = left_open(tmp_path)
    recover_traces(tmp_path)
    assert ends_in(folder) == []


def test_an_end_that_is_recorded_is_kept(tmp_path):
    folder = left_open(tmp_path, end="crashed")
    recover_traces(tmp_path, stopped=False)
    assert ends_in(folder) == [("crashed", None)]


@pytest.mark.parametrize(("folder", "name"), [("", "memory.events"), ("memory", "memory.oom_control")])
def test_kills_for_want_of_memory_are_counted_by_the_cgroup(tmp_path, folder, name):
    (tmp_path / "fs" / folder).mkdir(parents=True)
    (tmp_path / "fs" / folder / name).write_text("low 0\noom 7\noom_kill 2\n")
    (tmp_path / "member").write_text("")
    assert Limits(tmp_path / "fs", tmp_path / "member").oom_kills() == 2


@pytest.mark.parametrize(
    ("state", "end"),
    [
        (RunState(1, "x", 0), "completed"),
        (RunState(1, "x", 0, stopped=True), "completed"),
        (RunState(1, "x", 1), "crashed"),
        (RunState(1, "x", 1, stopped=True), "stopped"),  # a framework that leaves at Ctrl-C
        (RunState(1, "x", 130), "stopped"),
        (RunState(1, "x", 143), "stopped"),
        (RunState(1, "x", 137), "killed"),
        (RunState(1, "x", 137, out_of_memory=True), "out_of_memory"),
        (RunState(1, "x", 139), "crashed"),
        (RunState(1, "x"), "unknown"),
    ],
)
def test_the_end_of_a_run(state, end):
    assert state.end == end


def test_a_run_is_running_until_its_exit_code_is_known(tmp_path):
    write_state(tmp_path)
    assert read_state(tmp_path).end == "running"
    write_state(tmp_path, 1, stopped=True, out_of_memory=True)
    assert read_state(tmp_path).end == "stopped"


OWN_HANDLER = """
import faulthandler, os, signal, sys
from pathlib import Path
from sm_profiler.hook.process_end import StopSignals

signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run under nohup
stops = StopSignals(lambda: (Path(sys.argv[1]), "rank"), lambda: {"start_us": 5}, lambda action: action(), print)
stops.start()
with open(sys.argv[2], "wb") as file:
    faulthandler.register(signal.SIGTERM, file, all_threads=False, chain=False)
    if not os.fork():
        os._exit(0)
    os.wait()
    os.kill(os.getpid(), signal.SIGTERM)
    stops.exit()
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGHUP)
"""


def test_a_handler_of_faulthandler_that_the_script_registers_stays(tmp_path):
    """The address of the handler in C is the same for all registrations."""
    stacks = tmp_path / "stacks"
    done = subprocess.run(
        [sys.executable, "-c", OWN_HANDLER, tmp_path, stacks], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGHUP, "", "")
    assert stacks.read_text().count("most recent call first") == 2
