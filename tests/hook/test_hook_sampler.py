"""The sampler: stacks reduced to the user's lines, phases and long steps with a fake clock, and real trainings."""

import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from threading import get_ident
from types import SimpleNamespace

import pytest

from sm_profiler.config import load_profile
from sm_profiler.config.explaining import explain
from sm_profiler.formats.event_names import LOOP
from sm_profiler.hook import frames
from sm_profiler.hook.frames import outwards, stack_and_lines
from sm_profiler.hook.modes import ModeKeys
from sm_profiler.hook.own_work import OwnWork
from sm_profiler.hook.pytorch.workers import SLOT_BYTES, Board, WorkerSampler, WorkerStacks
from sm_profiler.hook.recorder import MAX_STRETCH
from sm_profiler.hook.sampler import DELAY, DENSE_DELAY, EARLY, EARLY_SECONDS, MAX_DELAY, SHARE, Sampler, is_wanted
from sm_profiler.hook.stacks import (
    FIRST_STEPS,
    MAX_KEYS,
    MAX_WRITTEN,
    PROMPT_SECONDS,
    Lengths,
    Prompt,
    StackReader,
    Tally,
    to_args,
)
from sm_profiler.metrics import thresholds
from tests.support.hook import environment
from tests.support.profiles import events

LIBRARY = "/opt/lib/python3/site-packages/torch/nn/modules.py"
STANDARD = os.__file__.replace("os.py", "queue.py")


def stack(*places):
    """Return the innermost frame of made-up functions: (file, line, function), the outermost first."""
    captured = []
    space = {"capture": lambda: captured.append(sys._getframe(1)), "__name__": "made.up"}
    previous = "capture"
    for file, line, function in reversed(places):
        code = "\n" * (line - 2) + f"def {function}():\n  {previous}()\n"
        exec(compile(code, file, "exec"), space)  # noqa: S102 - made-up files and lines
        previous = function
    space[previous]()
    return captured[0]


def test_only_the_users_lines_stay():
    frame = stack(
        ("/w/train.py", 9, "main"), (LIBRARY, 5, "call"), ("/w/model.py", 30, "forward"), (STANDARD, 7, "get"),
        (LIBRARY, 8, "wait"),
    )  # fmt: skip
    places, leaf = StackReader().read(outwards(frame))
    assert [place for place in places if place[0].startswith("/w/")] == [
        ("/w/train.py", 9, "main"), ("/w/model.py", 30, "forward")
    ]  # fmt: skip
    assert leaf == "made.up.wait"


def test_without_the_users_lines_the_innermost_of_libraries_stay():
    reader = StackReader(stop=stack.__code__)
    places, leaf = reader.read(outwards(stack((LIBRARY, 5, "outer"), (LIBRARY, 6, "middle"), (LIBRARY, 7, "inner"))))
    assert [place[1:] for place in places] == [(5, "outer"), (6, "middle"), (7, "inner")]
    assert leaf == "made.up.inner"
    assert reader.read([]) == ((), "")


def test_packages_of_pip_install_target_are_libraries_but_not_the_script_beside_others(tmp_path, monkeypatch):
    target, scripts = tmp_path / "lib", tmp_path / "code"
    for folder in (target, scripts):
        (folder / "vendored-1.0.dist-info").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(scripts), str(target), *sys.path])
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(scripts / "train.py"), raising=False)
    frames._targets.cache_clear()
    reader = StackReader(stop=stack.__code__)
    places, leaf = reader.read(
        outwards(stack((f"{scripts}/train.py", 4, "main"), (f"{target}/vendored/x.py", 5, "call")))
    )
    frames._targets.cache_clear()
    assert [place[1:] for place in places] == [(4, "main")]
    assert leaf == "made.up.call"


@pytest.mark.parametrize("file", [5, "/a\0b/train.py", None])
def test_places_that_are_no_paths_do_not_matter(file, monkeypatch):
    monkeypatch.setattr(sys, "path", ["/a\0b", "/\ud800", 5, None, *sys.path])
    monkeypatch.setattr(sys.modules["__main__"], "__file__", file, raising=False)
    frames._targets.cache_clear()
    assert not frames.is_library("/w/train.py")
    frames._targets.cache_clear()


def test_a_removed_working_folder_does_not_matter(tmp_path, monkeypatch):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    frames._targets.cache_clear()
    assert not frames.is_library("/w/train.py")
    frames._targets.cache_clear()


def test_files_below_the_working_folder_are_named_relative_to_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reader = StackReader(stop=stack.__code__)
    places, _ = reader.read(
        outwards(stack((f"{tmp_path}/data/sets.py", 4, "load"), ("/w/" + "x" * 900 + "/long.py", 3, "deep")))
    )
    assert places[0] == ("data/sets.py", 4, "load")
    assert len(places[1][0]) < 400
    assert places[1][0].endswith("/long.py")


def test_generated_code_and_the_hook_are_nobodys_lines():
    import sm_profiler

    reader = StackReader(stop=stack.__code__)
    own = str(Path(sm_profiler.__file__).parent / "hook" / "x.py")
    places, leaf = reader.read(outwards(stack(("train.py", 4, "main"), (own, 5, "wrapper"), ("<string>", 6, "made"))))
    assert (places, leaf) == ((("train.py", 4, "main"),), "")


def test_a_comprehension_has_the_name_of_its_function():
    frames = []

    def rows():
        return [frames.append(sys._getframe()) for _ in range(1)]

    rows()
    places, _ = StackReader().read(outwards(frames[0]))
    assert places[-1][2] == "rows" or sys.version_info < (3, 11)


def test_a_library_that_is_imported_is_one_function():
    frame = stack(("train.py", 4, "main"), ("<frozen importlib._bootstrap>", 5, "load"), (LIBRARY, 6, "module"))
    assert StackReader(stop=stack.__code__).read(outwards(frame)) == ((("train.py", 4, "main"),), "import")


def test_a_deep_recursion_keeps_the_innermost_lines():
    reader = StackReader(stop=stack.__code__)
    places, _ = reader.read(outwards(stack(*[("train.py", 3 + number, f"f{number}") for number in range(60)])))
    assert len(places) == 32
    assert places[-1] == ("train.py", 62, "f59")


def test_a_step_is_long_beyond_twice_and_five_milliseconds_more_than_usual():
    lengths = Lengths()
    assert not lengths.is_long(1e9)
    for _ in range(8):
        lengths.add(0.002)
    assert [lengths.is_long(seconds) for seconds in (0.005, 0.008)] == [False, True]
    for _ in range(64):
        lengths.add(0.1)
    assert [lengths.is_long(seconds) for seconds in (0.15, 0.21)] == [False, True]


def test_sums_are_bounded_and_keep_their_total():
    tally = Tally()
    for number in range(3 * MAX_KEYS):
        tally.add(("wait", False, "", (("train.py", number, "f"),)), 0.001 * (number % 7 + 1))
    total = sum(0.001 * (number % 7 + 1) for number in range(3 * MAX_KEYS))
    args = to_args(tally.take())
    assert len(args["stacks"]) <= MAX_WRITTEN + 1
    assert sum(one[2] for one in args["stacks"]) == pytest.approx(1e3 * total, rel=1e-3)
    assert len(json.dumps(args)) < 20_000
    assert not tally


def test_the_switch_interval_is_restored():
    before = sys.getswitchinterval()
    seen = []
    prompt = Prompt()
    watcher = threading.Thread(target=prompt.wait, args=(0.2,))
    watcher.start()
    deadline = time.monotonic() + 20
    while watcher.is_alive() and time.monotonic() < deadline:
        seen.append(sys.getswitchinterval())
    assert min(seen) == pytest.approx(PROMPT_SECONDS)
    assert sys.getswitchinterval() == before


def test_a_script_and_a_forked_child_keep_their_own_switch_interval():
    before = sys.getswitchinterval()
    prompt = Prompt()
    try:
        watcher = threading.Thread(target=prompt.wait, args=(0.2,))
        watcher.start()
        while prompt._before is None and watcher.is_alive():
            time.sleep(0.001)
        sys.setswitchinterval(0.003)
        watcher.join()
        assert sys.getswitchinterval() == pytest.approx(0.003)
        prompt._before = 0.004  # forked while it was short
        prompt.forked()
        assert sys.getswitchinterval() == pytest.approx(0.004)
    finally:
        sys.setswitchinterval(before)


class Tracker(SimpleNamespace):
    """The state that a tracker shows."""

    @property
    def latest(self):
        return self.global_step, self.step_start


class Machine:
    """A sampler with a clock and a training thread of our own."""

    def __init__(self, recording=True) -> None:
        self.now, self.cpu, self.records, self.frame, self.recording = 0, 0.0, [], None, recording
        self.thread = 7
        self.waited = 0  # ns without a core
        self.helped = 0  # the same of the threads that it waits for, since the last sample
        self.tracker = Tracker(
            global_step=-1, step_start=0, mode=ModeKeys.TRAIN, in_fetch=0, in_backward=0, forward_key=0, in_optimizer=False,
            is_open=False, after_last_phase=False, in_compiled=False, rest=None, train_number=-1, evaluates_after=-2,
        )  # fmt: skip
        self.errors = []
        self.work = OwnWork(lambda _: None, clock=lambda: self.now, waited=lambda: 0)
        self.sampler = Sampler(
            self.records.append, self.tracker, lambda: self.thread, is_recording=lambda: self.recording,
            on_error=lambda _, error: self.errors.append(error), clock=lambda: self.now, own_cpu=lambda: self.cpu,
            frames=lambda: {self.thread: self.frame}, waited=lambda: self.waited,
            helpers=SimpleNamespace(delay=lambda _: self.helped, close=lambda: None), work=self.work,
        )  # fmt: skip

    def sample(self, line, milliseconds=10, **state):
        vars(self.tracker).update(state)
        self.now += int(milliseconds * 1e6)
        self.frame = stack(("train.py", line, "main"))
        self.sampler.reader = StackReader(stop=stack.__code__)
        self.sampler.sample(self.now)

    def step(self, number, **state):
        vars(self.tracker).update({"global_step": number, "step_start": self.now, "is_open": True, **state})

    def result(self):
        self.sampler.close()
        return {
            (phase, long, args["frames"][frames[-1]][1]): milliseconds
            for record in self.records
            for args in [record[5]]
            for phase, long, milliseconds, _count, _leaf, frames in args["stacks"]
        }


def test_each_sample_counts_for_the_time_since_the_last_in_the_phase_of_the_tracker():
    machine = Machine()
    machine.sample(10, 500)
    machine.step(0)
    machine.sample(20, 30, forward_key=5)
    machine.sample(21, 40, forward_key=0, in_backward=1)
    machine.sample(22, 50, in_backward=0)
    machine.sample(23, 60, in_optimizer=True)
    machine.sample(24, 70, in_optimizer=False, after_last_phase=True)
    machine.sample(28, 75, in_compiled=True)
    machine.sample(25, 80, in_compiled=False, in_fetch=1, is_open=False)
    machine.step(1, in_fetch=0, after_last_phase=False)
    machine.sample(26, 90, mode=ModeKeys.EVAL)
    machine.step(2, mode=ModeKeys.TRAIN)
    machine.sampler.declared.append("augment")
    machine.sample(27, 100)
    assert machine.result() == {
        ("start", 0, 10): 500, ("forward", 0, 20): 30, ("backward", 0, 21): 40, ("between", 0, 22): 50,
        ("optimizer", 0, 23): 60, ("outside", 0, 24): 70, ("wait", 0, 25): 80, ("evaluation", 0, 26): 90,
        ("compiled", 0, 28): 75, ("augment", 0, 27): 100,
    }  # fmt: skip


def test_what_the_hook_does_on_the_training_thread_is_no_line_of_the_script():
    """A window's end was in the flame graph, with a quarter of the time outside the phases."""
    machine = Machine()
    machine.thread = get_ident()
    machine.step(0)
    machine.sample(20, 30)
    with machine.work.doing("a window stops"):
        machine.sample(21, 600)
        machine.now += 40 * 1_000_000
    machine.sample(22, 10)
    with machine.work.doing("a window starts"):
        machine.now += 300 * 1_000_000
    machine.sample(23, 5)
    with machine.work.unrecorded():  # too short to be timed
        machine.sample(24, 3)
    assert machine.result() == {("between", 0, 20): 30, ("between", 0, 22): 10, ("between", 0, 23): 5}


def train(machine, steps, milliseconds=100, line=20):
    for _ in range(steps):
        machine.step(machine.tracker.global_step + 1)
        machine.sample(line, milliseconds / 2, forward_key=1)
        machine.sample(line, milliseconds / 2)


def test_what_the_first_steps_do_once_is_no_part_of_the_loop():
    """Before the usual length is known, no step was long, so that a compilation was in the lines of usual steps."""
    machine = Machine()
    machine.sample(10, 500)
    for number, (line, milliseconds) in enumerate([(40, 900), (20, 100), (20, 100), (41, 600)]):
        machine.step(number)
        machine.sample(line, milliseconds)
    train(machine, 20)
    found = machine.result()
    assert found.pop(("start", 0, 10)) == 500
    assert found.pop(("first_steps", 1, 40)) == 900
    assert found.pop(("between", 1, 41)) == 600
    assert {line for _, _, line in found} == {20}
    assert sum(found.values()) == 200 + 20 * 100
    assert thresholds.WARM_UP_STEPS == FIRST_STEPS


def test_samples_of_a_training_of_few_steps_are_kept():
    machine = Machine()
    train(machine, 4)
    found = machine.result()
    assert sum(found.values()) == 400
    assert {phase for phase, _, _ in found} == {"forward"}


def test_first_steps_that_no_sample_saw_end_do_not_hide_a_long_one():
    machine = Machine()
    machine.step(0)
    machine.sample(40, 900)
    for number in range(6, 80, 6):
        machine.now += int(6e6)
        machine.step(number)
        machine.sample(20, 60)
    found = machine.result()
    assert found[("first_steps", 1, 40)] == 900


def test_a_long_step_is_long_from_its_first_sample():
    machine = Machine()
    train(machine, 20)
    machine.step(20)
    machine.sample(30, 50)
    machine.sample(31, 60)  # not known to be long yet
    machine.sample(32, 400)
    machine.step(21)
    machine.sample(20, 50)
    found = machine.result()
    assert (found["forward", 1, 30], found["forward", 1, 31], found["forward", 1, 32]) == (50, 60, 400)
    assert found["forward", 0, 20] == 20 * 100 + 50


def test_samples_are_denser_in_a_long_step_until_the_budget_is_spent():
    machine = Machine()
    assert machine.sampler.delay(0) == DELAY
    train(machine, 20)
    machine.step(20)
    assert machine.sampler.delay(machine.now) == DELAY
    machine.now += 300_000_000
    assert machine.sampler.delay(machine.now) == DENSE_DELAY
    machine.sampler._saved = 0.001
    assert machine.sampler.delay(machine.now) == DELAY
    machine.sampler._saved = -0.001
    assert machine.sampler.delay(machine.now) == pytest.approx(DELAY + 0.001 / (EARLY * SHARE))
    machine.now += int(EARLY_SECONDS * 1e9)
    assert machine.sampler.delay(machine.now) == pytest.approx(DELAY + 0.001 / SHARE)
    machine.sampler._saved = -1
    assert machine.sampler.delay(machine.now) == MAX_DELAY


@pytest.mark.parametrize(("waits", "stretch"), [(0, 1), (50, 2), (99, MAX_STRETCH), (100, MAX_STRETCH)])
def test_a_training_without_a_core_is_sampled_less_often_for_the_same_share_of_its_time(waits, stretch):
    machine = Machine()
    train(machine, 20)
    machine.waited += waits * 1_000_000
    machine.sample(20, 100)
    assert machine.sampler.delay(machine.now) == DELAY
    machine.sampler._saved = -0.001
    assert machine.sampler.delay(machine.now) == pytest.approx((DELAY + 0.001 / (EARLY * SHARE)) * stretch)
    machine.sampler._saved = -1
    assert machine.sampler.delay(machine.now) == pytest.approx(MAX_DELAY * stretch)


def test_before_the_first_step_samples_become_rarer():
    machine = Machine()
    delays = [machine.sampler.delay(int(seconds * 1e9)) for seconds in (1, 300, 10_000)]
    assert delays == [DELAY, 0.3, MAX_DELAY]


def test_what_follows_the_last_step_is_not_part_of_the_loop():
    machine = Machine()
    train(machine, 20)
    machine.sample(90, 5000, forward_key=0, after_last_phase=True)
    assert machine.result()["end", 1, 90] == 5000


def test_the_functions_that_run_the_first_steps_are_recorded_once():
    machine = Machine()
    assert [machine.sampler.step_begins(step, ModeKeys.TRAIN) for step in range(4)] == [False, False, False, True]
    assert machine.sampler.step_begins(4, ModeKeys.EVAL)
    (record,) = machine.records
    assert record[0] == LOOP
    here = ("test_hook_sampler.py", "test_the_functions_that_run_the_first_steps_are_recorded_once")
    assert here in [(file.rpartition("/")[2], function) for file, _, function in record[5]["frames"]]


def test_a_loop_of_generated_code_has_no_functions():
    machine = Machine()
    machine.sampler.reader.read = lambda _stack: ((), "")
    assert not machine.sampler.step_begins(1, ModeKeys.TRAIN)
    assert machine.records == machine.errors == []


def test_nothing_is_written_before_recording_starts():
    machine = Machine(recording=False)
    machine.sample(10, 2000)
    assert machine.records == []
    assert machine.result() == {("start", 0, 10): 2000}


def test_a_collection_names_the_line_that_caused_it():
    machine = Machine()
    machine.sampler._training_thread = threading.get_ident
    machine.sampler.reader = StackReader(stop=stack.__code__)
    machine.sampler.note_collection(stack(("train.py", 40, "build")), 0.25)
    machine.sampler._training_thread = lambda: 7
    machine.sampler.note_collection(stack(("train.py", 41, "other_thread")), 0.25)
    assert machine.result() == {("gc", 0, 40): 250}


def test_the_scripts_random_numbers_are_left_alone():
    random.seed(3)
    state = random.getstate()
    machine = Machine()
    machine.sampler.begin()
    deadline = time.monotonic() + 20
    while machine.sampler._last_ns == machine.sampler._began_ns and time.monotonic() < deadline:
        machine.now += 1
        time.sleep(0.01)
    machine.sampler.close()
    assert random.getstate() == state
    assert machine.errors == []


def test_an_error_switches_the_sampler_off():
    machine = Machine()
    machine.sampler._frames = lambda: 1 / 0
    machine.sampler.begin()
    machine.sampler._thread.join(20)
    assert isinstance(machine.errors[0], ZeroDivisionError)


@pytest.mark.parametrize(
    ("parameters", "variable", "wanted"),
    [
        ({}, "", True),
        ({}, "off", False),
        ({"SamplerEnabled": "false"}, "", False),
        ({"samplerenabled": True}, "on", True),
    ],
)
def test_environment_and_configuration_switch_it_off(parameters, variable, wanted):
    profile = load_profile({"ProfilingParameters": {"LocalPath": "/tmp", **parameters}})
    assert is_wanted(profile, {"SM_PROFILER_SAMPLER": variable}) is wanted
    assert not any(
        "SamplerEnabled" in line for line in explain({"ProfilingParameters": {"SamplerEnabled": "false"}}).wrong
    )


# workers


def test_a_board_keeps_the_latest_text_of_each_worker():
    board = Board(2)
    assert board.get(0) == b""
    board.put(0, b"[1]")
    board.put(1, b"[2]")
    board.put(0, b"[3, 4]")
    board.put(0, b"x" * SLOT_BYTES)  # too long
    board.put(5, b"nobody")
    assert (board.get(0), board.get(1)) == (b"[3, 4]", b"[2]")


def test_a_worker_is_sampled_while_it_has_a_task_and_only_what_is_new_is_read():
    board, tasks, now = Board(1), SimpleNamespace(waiting=True, came_ns=0), [0]
    frame = [None]
    sampler = WorkerSampler(
        board, 0, tasks, stack.__code__, frames=lambda: {threading.get_ident(): frame[0]},
        clock=lambda: now[0], own_cpu=lambda: 0.0,
    )  # fmt: skip

    def sample(line, milliseconds):
        now[0] += int(milliseconds * 1e6)
        frame[0] = stack(("train.py", line, "collate"))
        sampler.sample(now[0])

    class Iterator:
        """Iterator of a loader."""

    iterator, stacks = Iterator(), WorkerStacks()
    stacks.add(iterator, board)
    sample(5, 100)
    tasks.waiting, tasks.came_ns = False, now[0]
    sample(6, 300)
    assert stacks.read() == []
    sampler._tally.settle()
    sampler.publish()
    key = ("worker", False, "", (("train.py", 6, "collate"),))
    assert stacks.read() == [(key, pytest.approx(0.3), 1)]
    assert stacks.read() == []
    tasks.came_ns = now[0]
    sample(6, 200)
    sampler.end()
    del iterator
    assert stacks.read() == [(key, pytest.approx(0.2), 1)]
    assert stacks.read() == []


SCRIPT = """
import gc, hashlib, os, sys, threading, time
import torch
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
torch.manual_seed(0)

class Squares(Dataset):
    def __len__(self): return 64
    def __getitem__(self, index):
        if WORKERS: time.sleep(0.01)  # slow sample
        return torch.full((8,), float(index)) + torch.rand(8)

def log_everything():
    time.sleep(0.02)  # slow log

def spin(stop):
    while not stop.is_set(): sum(range(1000))

def main():
    model = torch.nn.Linear(8, 8)
    run = torch.compile(model, backend="eager") if MODE == "compiled" else model
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    digest = hashlib.sha256()
    stop = threading.Event()
    if MODE == "threads":
        for _ in range(3): threading.Thread(target=spin, args=(stop,), daemon=True).start()
    for epoch in range(4):  # seconds: the first source texts may cost the sampler one second's budget
        for number, batch in enumerate(DataLoader(Squares(), 2, num_workers=WORKERS, shuffle=True)):
            loss = run(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            digest.update(loss.detach().numpy().tobytes())
            log_everything()
            if MODE == "forks" and number == 5:
                child = os.fork()
                if child == 0:
                    for _ in range(30):
                        model(torch.rand(1, 8)).sum().backward()
                        optimizer.step()
                    os._exit(0)
                assert os.waitpid(child, 0)[1] == 0
    stop.set()
    print(digest.hexdigest())

if __name__ == "__main__":
    MODE, WORKERS = sys.argv[1], 2 if sys.argv[1] == "workers" else 0
    if MODE == "cprofile":
        import cProfile
        cProfile.Profile().runcall(main)
    elif MODE == "pyinstrument":
        import pyinstrument
        with pyinstrument.Profiler(): main()
    elif MODE == "debugger":
        def trace(frame, event, arg): return trace
        sys.settrace(trace)
        threading.settrace(trace)
        main()
    else:
        main()
"""
MODES = (
    "plain",
    "workers",
    "threads",
    "compiled",
    *(pytest.param(mode, marks=pytest.mark.long) for mode in ("forks", "cprofile", "pyinstrument", "debugger")),
)


@pytest.fixture(scope="module")
def digests(tmp_path_factory):
    """The results of the script with the hook off, by whether workers load its data."""
    folder = tmp_path_factory.mktemp("off")
    (folder / "train.py").write_text(SCRIPT)
    return {workers: run(folder, "workers" if workers else "plain", hook=False)[0] for workers in (False, True)}


def run(folder, mode, *, hook=True, **variables):
    profile = json.dumps({"ProfilingParameters": {"LocalPath": str(folder / "profile")}})
    launcher = ["-m", "sm_profiler.hook.launch"] if hook else []
    done = subprocess.run(
        [sys.executable, *launcher, "train.py", mode], capture_output=True, text=True, check=False, timeout=250,
        cwd=folder, env=environment(SM_PROFILER_CONFIG=profile, **variables),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout, [
        row for row in events(folder / "profile") if row["phase"] == "sm_profiler/samples"
    ] if hook else []


def milliseconds(samples, phase, wanted):
    """Return the time of stacks of a phase whose innermost line's text contains `wanted`."""
    return sum(
        row[2]
        for one in samples
        for row in one["args"]["stacks"]
        if row[0] == phase and row[5] and wanted in one["args"]["lines"][row[5][-1]]
    )


@pytest.mark.flaky(reruns=2)  # on a busy machine, few samples are taken, and none may hit the line
@pytest.mark.first(1)
@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_real_trainings_keep_their_results_and_name_the_slow_line(tmp_path, mode, digests):
    if mode == "pyinstrument":
        pytest.importorskip("pyinstrument")
    (tmp_path / "train.py").write_text(SCRIPT)
    digest, samples = run(tmp_path, mode)
    assert digest == digests[mode == "workers"]
    assert milliseconds(samples, "outside", "slow log") > 0
    assert (milliseconds(samples, "worker", "slow sample") > 0) is (mode == "workers")
    files = {frame[0] for one in samples for frame in one["args"]["frames"]}
    assert not any("sm_profiler" in file for file in files)


@pytest.mark.long
@pytest.mark.slow
def test_the_environment_switches_it_off(tmp_path, digests):
    (tmp_path / "train.py").write_text(SCRIPT)
    assert run(tmp_path, "workers", SM_PROFILER_SAMPLER="off") == (digests[True], [])


def test_waits_for_a_core_are_summed_by_the_length_of_their_step():
    machine = Machine()
    for number in range(20):
        machine.step(number)
        machine.waited += 1_000_000
        machine.sample(20, 10, forward_key=5)
    machine.step(20)
    for _ in range(5):
        machine.waited += 8_000_000
        machine.sample(21, 20)
    machine.step(21)
    machine.sample(22, 10)
    machine.step(22)
    machine.result()
    usual, long = (sum(record[5]["waited_ms"][kind] for record in machine.records) for kind in (0, 1))
    assert (usual, long) == (20, 40)


def test_threads_without_a_core_count_while_the_framework_computes():
    machine = Machine()
    machine.helped = 2_000_000
    machine.step(0)
    machine.sample(20, 10, in_compiled=True)
    machine.sample(21, 10, in_compiled=False, is_open=False)
    machine.sample(20, 10, in_compiled=True)
    assert machine.sampler.helpers_ns == 4_000_000
    machine.sampler.declared.append("metrics")
    machine.sample(21, 10)
    assert machine.sampler.helpers_ns == 4_000_000
    machine.step(1)
    machine.sample(22, 10)
    machine.result()
    assert sum(sum(record[5]["waited_ms"]) for record in machine.records) == 4


def interpreter(version):
    """Return a Python of this version that runs, or None: a shim of pyenv may have none behind it."""
    kept = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"), reverse=True)
    found = [*map(str, kept), shutil.which(f"python{version}")]
    return next((python for python in found if python and version_of(python) == version), None)


def version_of(python):
    command = [python, "-c", "import sys; print('.'.join(map(str, sys.version_info[:2])))"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def test_an_interpreter_that_cannot_run_is_not_installed(tmp_path, monkeypatch):
    shim = tmp_path / "python3.10"
    shim.write_text("#!/bin/sh\necho 'pyenv: python3.10: command not found' >&2\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert interpreter("3.10") is None


@pytest.mark.first(1)
@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13"])
def test_other_pythons_see_the_same_lines(version):
    python = interpreter(version)
    if python is None:
        pytest.skip(f"Python {version} is not installed")
    import attrs

    root = Path(__file__).parents[2]
    paths = f"{root}{os.pathsep}{Path(attrs.__file__).parents[1]}"
    script = Path(__file__).with_name("sampler_versions.py")
    done = subprocess.run(
        [python, script],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert (found["holder"], found["functions"]) == ("values of Store", ["keep"])
    for name, seen in found["seen"].items():
        assert seen == {"function": "slow", "errors": []}, name


def test_lines_are_those_of_the_moment_at_which_the_stack_was_read():
    """A generator runs on between the reading of its stack and that of its lines, as the training thread may."""

    def running():
        yield 1
        yield 2

    steps = running()
    next(steps)
    first = steps.gi_frame.f_lineno
    stack, lines = stack_and_lines(7, lambda: {7: steps.gi_frame})
    next(steps)
    places, _ = StackReader().read(stack, lines)
    assert places[-1][1] == first
    assert StackReader().read(stack)[0][-1][1] == first + 1
    assert stack_and_lines(8, dict) == ([], [])
