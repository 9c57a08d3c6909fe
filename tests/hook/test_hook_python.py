"""The Python window: added while the job runs, and limited around the loop."""

import cProfile
import json
import pstats
import subprocess
import sys
import threading
import time
import types
import weakref
from functools import partial

import pytest

from sm_profiler import threads
from sm_profiler.config import CollectorConfig
from sm_profiler.formats.layout import PythonStats, parse_path
from sm_profiler.hook import python_window
from sm_profiler.hook.guard import Guard
from sm_profiler.hook.modes import ModeKeys
from sm_profiler.hook.own_work import OwnWork
from sm_profiler.hook.python_window import AROUND_SECONDS, CProfile, Point, PythonCollector, TimeLimit, other_profiler
from tests.support.hook import config, environment

needs_no_other_profiler = pytest.mark.skipif(other_profiler() is not None, reason=f"did not run: {other_profiler()}")


def parsed(folder) -> list:
    paths = (path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file())
    return [found for found in map(parse_path, paths) if isinstance(found, PythonStats)]


class Around:
    """A profiled set-up with a fake clock; it also takes the place of the session."""

    def __init__(self, folder, profiler: str) -> None:
        self.now, self.tasks, self.limits, self.cancelled = 0.0, [], [], 0
        self.root, self.source, self.guard, self.exiting = folder, "0-algo-1", Guard(), False
        self.adapter = types.SimpleNamespace(framework="pytorch")
        self.timebase = types.SimpleNamespace(now_us=lambda: int(self.now * 1e6))
        self.tracker = types.SimpleNamespace(mode=ModeKeys.TRAIN, number=0)
        self.work = OwnWork(lambda _: None)
        self.later, self.is_recording = self.tasks.append, False
        config = CollectorConfig(start_step=5, num_steps=1, profiler=profiler)
        self.slowdown = types.SimpleNamespace(usual_ns=lambda _: None)
        self.notes = {}
        self.note = self.notes.__setitem__
        self.collector = PythonCollector(self, config, limit=self._limit)

    def run(self, _collector, action, *args) -> None:
        action(*args)

    def _limit(self, seconds, reached):
        self.limits.append((seconds, reached))
        return self

    def cancel(self) -> None:
        self.cancelled += 1

    def is_profiled(self) -> bool:
        return sys.getprofile() is not None or other_profiler() is not None


def early() -> int:
    return sum(number for number in range(10))


def late() -> int:
    return sum(number for number in range(10))


@needs_no_other_profiler
@pytest.mark.parametrize("profiler", ["cprofile", "pyinstrument"])
def test_a_long_set_up_is_profiled_for_a_minute(tmp_path, profiler):
    pytest.importorskip(profiler.replace("cprofile", "cProfile"))
    around = Around(tmp_path, profiler)
    around.collector.before_loop()
    early()
    assert around.is_profiled()
    ((seconds, reached),) = around.limits
    assert seconds == AROUND_SECONDS
    around.now = 60.0
    reached()
    assert not around.is_profiled()
    around.now = 5000.0
    late()
    around.collector.step_begins(0, ModeKeys.TRAIN)
    reached()  # too late to matter
    for task in around.tasks:
        task()
    around.collector.finish()
    (stats, *_) = parsed(tmp_path)
    window = stats.window
    assert (window.start_mode, window.start_us) == ("prestepzero", 0)
    assert (window.end_mode, window.end_step, window.end_phase) == ("train", 0, "stepstart")  # as without a limit
    assert window.end_us == 60_000_000  # but with the time of the cut
    if profiler == "cprofile":
        names = {name for _, _, name in pstats.Stats(str(tmp_path / stats.path)).stats}
        assert "early" in names
        assert "late" not in names


@needs_no_other_profiler
def test_only_the_profilers_around_the_loop_are_kept(tmp_path):
    """Freed, the many entries of the imports leave holes in the heap that the loop's objects would fill."""
    around = Around(tmp_path, "cprofile")
    around.collector.before_loop()
    before = weakref.ref(around.collector._profiler)
    around.collector.enter(5)
    around.collector.step_begins(5, ModeKeys.TRAIN)
    inside = weakref.ref(around.collector._profiler)
    around.collector.leave(6)
    around.collector.step_begins(6, ModeKeys.TRAIN)
    around.collector.write_all()
    assert before() is not None
    assert inside() is None


def test_the_time_after_the_loop_is_profiled_for_a_minute(tmp_path):
    around = Around(tmp_path, "cprofile")
    around.collector.close()
    around.now = 60.0
    around.limits[0][1]()
    assert not around.is_profiled()
    around.now = 5000.0
    around.collector.exit()
    (stats,) = parsed(tmp_path)
    assert (stats.window.start_mode, stats.window.end_phase, stats.window.end_us) == ("posthookclose", "end", 60e6)


@needs_no_other_profiler
def test_an_earlier_step_ends_the_profile_and_its_limit(tmp_path):
    around = Around(tmp_path, "cprofile")
    around.collector.before_loop()
    around.now = 2.0
    around.collector.step_begins(0, ModeKeys.TRAIN)
    assert around.cancelled == 1
    around.limits[0][1]()
    around.collector.write()
    assert [stats.window.end_us for stats in parsed(tmp_path)] == [2_000_000]


@needs_no_other_profiler
def test_results_are_written_a_few_a_beat_and_the_rest_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(python_window, "WRITE_SECONDS", 0.0)
    around = Around(tmp_path, "cprofile")
    around.collector.enter(0)
    for step in range(5):
        around.now += 1.0
        around.tracker.number = step
        around.collector.step_begins(step, ModeKeys.TRAIN)
    around.collector.beat()
    assert parsed(tmp_path) == []  # the window is open
    around.collector.leave(5)
    around.now += 1.0
    around.collector.step_begins(5, ModeKeys.TRAIN)
    for written in (1, 2):
        around.collector.beat()
        assert len(parsed(tmp_path)) == written
    around.collector.exit()
    assert len(parsed(tmp_path)) == 5


@needs_no_other_profiler
def test_pyinstrument_renders_in_a_process_of_its_own(tmp_path):
    pytest.importorskip("pyinstrument")
    around = Around(tmp_path, "pyinstrument")
    around.collector.before_loop()
    early()
    around.collector.step_begins(0, ModeKeys.TRAIN)
    around.collector.exit()
    assert around.collector._children
    around.collector.finish()
    assert {path.suffix for path in tmp_path.rglob("python_stats*")} == {".json", ".html"}
    assert around.notes == {}
    page = next(tmp_path.rglob("*.json"))
    assert json.loads(page.read_text())["duration"] > 0


@needs_no_other_profiler
def test_a_failed_collector_discards_a_profile_that_reached_its_limit(tmp_path):
    around = Around(tmp_path, "cprofile")
    around.collector.before_loop()
    around.limits[0][1]()
    around.collector.failed()
    around.collector.exit()
    assert parsed(tmp_path) == []


def until(happened) -> bool:
    for _ in range(2000):
        if happened():
            return True
        time.sleep(0.005)
    return False


def test_a_time_limit_calls_back_on_the_main_thread():
    called = []
    TimeLimit(0.0, lambda: called.append(threading.current_thread()))
    assert until(lambda: called)
    assert called == [threading.main_thread()]


def test_a_cancelled_time_limit_does_nothing():
    called = []
    limit = TimeLimit(3600.0, lambda: called.append(1))
    limit.cancel()
    limit.cancel()
    assert until(lambda: "sm-profiler-limit" not in threads.running().values())
    assert called == []


def test_a_profiler_is_not_stopped_from_within_its_own_callback(monkeypatch):
    """The interpreter crashes otherwise."""
    called, inside = [], [True]

    def sample() -> float:  # a profiler's callback that takes long
        TimeLimit(0.0, lambda: called.append(list(asked)))
        while inside[0]:
            pass
        return 0.0

    names = {**globals(), "__name__": "pyinstrument.stack_sampler"}
    sample = types.FunctionType(sample.__code__, names, "sample", None, sample.__closure__)
    monkeypatch.setattr(python_window, "AGAIN_SECONDS", 0.001)
    asked, real = [], python_window.in_profiler

    def counted(frame) -> bool:
        asked.append(real(frame))
        inside[0] = len(asked) < 3
        return asked[-1]

    monkeypatch.setattr(python_window, "in_profiler", counted)
    sample()
    assert until(lambda: called)
    assert called[0][:3] == [True] * 3
    assert called[0][-1] is False


def test_the_off_cpu_timer_counts_sleeping():
    begun = python_window.off_cpu()
    time.sleep(0.05)
    assert 0.045 < python_window.off_cpu() - begun < 5


@needs_no_other_profiler
@pytest.mark.parametrize("timer", ["total_time", "off_cpu_time"])
def test_a_time_limit_stops_a_real_profiler(timer):
    profiler = CProfile(timer)
    profiler.start()
    TimeLimit(0.0, profiler.stop)
    assert until(lambda: other_profiler() is None)
    assert profiler.files()


PROGRAM = """
import json, os, sys, time
import torch
from sm_profiler.hook import get_hook
path, changed = sys.argv[1:]
hook = get_hook()
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)

def step():
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()

for _ in range(5):
    step()
with open(path, "w") as file:
    file.write(changed)
os.utime(path, ns=(1, 1))  # changes the time, at any resolution of the clock
hook.session._reload_profile()  # as the recorder's thread does once a second
for _ in range(20):
    step()
print(json.dumps({"failures": hook.session.guard.failures, "notes": hook.session.notes}))
"""


@pytest.mark.long
def test_a_python_window_can_be_added_while_the_job_runs(tmp_path):
    path, folder = tmp_path / "profilerconfig.json", tmp_path / "profile"
    path.write_text(config(folder))
    asked = '{"StartStep": 8, "NumSteps": 2, "ProfilerName": "cprofile", "cProfileTimer": "total_time", }'
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, path, config(folder, PythonProfilingConfig=asked)],
        capture_output=True, text=True, check=False, timeout=100, env=environment(SM_PROFILER_CONFIG=str(path)),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"failures": {}, "notes": {}}
    spans = [(w.start_mode, w.start_step, w.start_phase) for w in (stats.window for stats in parsed(folder))]
    assert sorted(spans) == [("train", step, phase) for step in (8, 9) for phase in ("forwardpassend", "stepstart")]


@needs_no_other_profiler
@pytest.mark.parametrize("profiler", ["cprofile", "pyinstrument"])
@pytest.mark.parametrize("own", ["function", "cProfile"])
def test_a_profiler_that_the_script_starts_stays(tmp_path, profiler, own):
    pytest.importorskip(profiler.replace("cprofile", "cProfile"))
    if own == "cProfile" and hasattr(sys, "monitoring"):
        pytest.skip("the interpreter refuses a second one")
    around = Around(tmp_path, profiler)
    around.collector.before_loop()
    called, mine = [], cProfile.Profile()
    start, stop = (mine.enable, mine.disable) if own == "cProfile" else (None, None)
    if start is None:
        start = partial(sys.setprofile, lambda frame, *_: called.append(frame.f_code.co_name))
        stop = partial(sys.setprofile, None)
    start()
    try:
        around.collector._stop(Point("train", 0, "stepstart", 0))
        around.collector.write_all()
        early()
    finally:
        stop()
        around.collector.finish()
    names = called if own == "function" else [name for _, _, name in pstats.Stats(mine).stats]
    assert "early" in names
