"""The hook's own doing in the records; windows that cost too much, come late or never end."""

import gc
import json
import threading

import pytest

from sm_profiler.hook.memory import GarbageCollector, full_is_due
from sm_profiler.hook.modes import ModeKeys
from sm_profiler.hook.own_work import BACKGROUND, STALL, OwnWork
from sm_profiler.hook.python_window import PythonCollector
from sm_profiler.hook.session import Session
from tests.support.sessions import Adapter, Recording, profile

MS = 1_000_000


class Clock:
    def __init__(self) -> None:
        self.now = 1

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def records():
    return []


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def work(records, clock):
    return OwnWork(records.append, clock, lambda: clock.now // 4)  # other processes take a quarter of the core


@pytest.fixture
def collect(records, clock, work):
    """Simulate a garbage collection; return whether it was marked, or None if it was not recorded."""
    due = [True]
    watch = GarbageCollector(records.append, work, clock, is_due=lambda: due[0])

    def collect(generation: int, ms: float, *, is_due: bool = True):
        due[0] = is_due
        records.clear()
        watch._callback("start", {"generation": generation})
        clock.now += int(ms * MS)
        watch._callback("stop", {"generation": generation, "collected": 0})
        return records[0][5].get("own", False) if records else None

    return collect


def test_collections_during_own_work_are_marked(work, collect):
    assert collect(2, 5) is False
    with work.unrecorded():
        assert collect(0, 5) is True
        assert collect(0, 0.5) is None
    assert collect(0, 5) is False


def test_a_full_collection_is_marked_if_mostly_our_objects_survived(work, collect):
    for _ in range(3):
        collect(1, 0.1)
    with work.unrecorded():
        for _ in range(4):
            collect(1, 0.1)
    assert collect(2, 30) is True
    assert work.stalled_ns == 30 * MS
    collect(1, 0.1)
    assert collect(2, 30) is False  # the count starts over


def test_calls_of_gc_collect_are_the_scripts_own(work, collect):
    with work.unrecorded():
        for _ in range(4):
            collect(1, 0.1)
    assert collect(2, 30, is_due=False) is False


def test_the_interpreter_shows_which_full_collections_are_due():
    seen = []
    gc.callbacks.append(
        lambda phase, info: seen.append((info["generation"], full_is_due())) if phase == "start" else None
    )
    thresholds = gc.get_threshold()
    gc.freeze()  # a full collection waits until the heap has grown by a quarter, and other tests leave a large one
    try:
        gc.collect()  # one may be due
        gc.collect()
        explicit, kept = seen[-1], []
        gc.set_threshold(10, 1, 1)
        while (2, True) not in seen and len(kept) < 100_000:
            kept.append([len(kept)])
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.pop()
        gc.unfreeze()
    assert explicit == (2, False)
    assert (2, True) in seen


def test_work_on_another_thread_does_not_mark_the_scripts_collections(work, collect):
    entered, leave = threading.Event(), threading.Event()

    def work_there() -> None:
        with work.unrecorded():
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=work_there)
    thread.start()
    entered.wait(10)
    assert collect(2, 5) is False
    leave.set()
    thread.join()


def test_own_work_is_recorded_and_counted_once(work, records, clock):
    with work.doing("outer"):
        clock.now += MS
        with work.doing("inner"):
            clock.now += MS
    with work.doing("elsewhere", BACKGROUND):
        clock.now += MS
    with work.doing("too short to record"):
        clock.now += 1000
    assert [(record[1], record[3] - record[2], record[5]["kind"]) for record in records] == [
        ("inner", MS, STALL),
        ("outer", 2 * MS, STALL),
        ("elsewhere", MS, BACKGROUND),
    ]
    assert work.stalled_ns == (2 * MS + 1000) * 3 / 4
    assert not work.is_own()


def test_a_hold_of_the_interpreter_is_recorded_and_counted_as_time_of_its_thread(work, records, clock):
    with work.holding("objects are counted"):
        assert work.is_own()
        clock.now += 20 * MS
    assert [(record[1], record[3] - record[2], record[5]["kind"]) for record in records] == [
        ("objects are counted", 20 * MS, STALL)
    ]
    assert work.stalled_ns == 0


# windows


class Training:
    """Steps of a session with an adapter of no framework."""

    def __init__(self, folder, **windows) -> None:
        self.session = Session(profile(folder, **windows), Adapter)
        self.collector = Recording()
        self.now = 1_000_000
        self.session.add(self.collector)
        self.records = []
        self.session.work._append = self.records.append

    def steps(self, count: int, ms: float) -> None:
        for _ in range(count):
            self.session.tracker.begin_step(self.now, gradients=True)
            self.now += int(ms * MS)

    @property
    def window(self):
        return next(record for record in self.records if record[1] == "detailed window")

    @property
    def entered_and_left(self):
        return [event for event in self.collector.life if event.startswith(("enter", "leave"))]


@pytest.fixture
def training(tmp_path):
    made = []

    def make(**windows) -> Training:
        made.append(Training(tmp_path, **windows))
        return made[0]

    yield make
    made[0].session.end()


def test_a_window_that_slows_training_ends_at_once(training):
    one = training(Detailed={"StartStep": 10, "NumSteps": 1000})
    one.steps(10, 100)
    one.steps(30, 400)
    assert one.entered_and_left == ["enter 10", "leave 14"]  # four steps cost 1.2 s more
    assert one.session.notes["detailed"] == "ended early: it made the training's steps 4.0 times as long"
    assert one.window[2:4] == (1_000_000 + 1000 * MS, 1_000_000 + 2600 * MS)
    assert one.window[5] == {"kind": "window", "window": "detailed", "steps": 4, "slower": 4.0}
    assert one.session.work.stalled_ns == 1200 * MS


@pytest.mark.parametrize(("usual", "inside"), [(100, 110), (1, 10)])
def test_a_window_stays_open_while_it_costs_little(training, usual, inside):
    """Ten percent slower, or much slower for less than a second."""
    one = training(Detailed={"StartStep": 10, "NumSteps": 50})
    one.steps(10, usual)
    one.steps(60, inside)
    assert one.entered_and_left == ["enter 10", "leave 60"]


def test_a_window_from_the_first_step_on_is_never_called_slow(training):
    one = training(Detailed={"StartStep": 0, "NumSteps": 20})
    one.steps(30, 2000)
    assert one.entered_and_left == ["enter 0", "leave 20"]
    assert one.window[5]["slower"] is None
    assert one.session.work.stalled_ns == 0


def test_the_record_of_a_window_that_is_open_at_the_end(training):
    one = training(Detailed={"StartStep": 1, "NumSteps": 20})
    one.steps(3, 1)
    one.session.close()
    assert one.window[5]["steps"] == 1  # the last one did not end


def test_a_window_that_the_training_does_not_reach_is_reported(tmp_path):
    session = Session(profile(tmp_path, Detailed={"StartStep": 500, "NumSteps": 1}), Adapter)
    session.add(Recording())
    session.tracker.begin_step(1_000_000, gradients=True)
    session.tracker.end_step()
    session.recorder.beat()  # opens the file
    session.end()
    events = [
        event for path in sorted(tmp_path.rglob("*_pythontimeline.json")) for event in json.loads(path.read_text())
    ]
    states = [event["args"]["collectors"] for event in events if event["name"] == "sm_profiler/process"]
    assert {} in states
    assert {"detailed": "missed: the training ended before step 500"} in states


def test_a_late_window_is_reported_and_prepared_before(training, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("sm_profiler.hook.windows.time.time", lambda: now[0])
    one = training(Detailed={"StartTimeInSecSinceEpoch": 1001, "DurationInSeconds": 60})
    one.collector.prepare = lambda: one.collector.life.append("prepared")
    one.steps(1, 10)
    assert one.collector.life[0] == "prepared"
    now[0] = 1003.5
    one.steps(2, 10)
    assert one.collector.life.count("prepared") == 1
    assert one.session.notes == {"detailed": "late: its first step began 2.5 s after the window's start"}


@pytest.mark.parametrize(("late", "is_said"), [(0.4, False), (0.6, True)])
def test_a_window_of_a_second_that_misses_half_of_it_is_reported(training, monkeypatch, late, is_said):
    now = [1000.0]
    monkeypatch.setattr("sm_profiler.hook.windows.time.time", lambda: now[0])
    one = training(Detailed={"StartTimeInSecSinceEpoch": 1001, "DurationInSeconds": 1})
    one.steps(1, 10)
    now[0] = 1001 + late
    one.steps(2, 10)
    assert ("detailed" in one.session.notes) is is_said


def test_the_python_window_closes_in_a_step_that_does_not_end(tmp_path):
    limits = []
    session = Session(profile(tmp_path, Python={"StartStep": 1, "NumSteps": 100}), Adapter)
    config = session.profile.collectors["python"]
    collector = PythonCollector(session, config, limit=lambda _, reached: limits.append(reached) or NoLimit())
    session.add(collector)
    tracker = session.tracker
    tracker.begin_step(1_000_000, gradients=True)
    tracker.begin_step(2_000_000, gradients=True)
    session.append(("Forward", "Net", 0, 1, 0, None))
    collector.beat()
    assert not limits
    shift = 11_000_000_000
    session.timebase.offset_ns += shift
    collector.beat()
    (reached,) = limits
    reached()
    assert session.notes["python"] == "ended early: no step began for 11 s"
    assert not session.schedule.active()
    assert collector._profiler is None
    tracker.begin_step(3_000_000, gradients=True)
    assert collector._profiler is None
    session.end()


class NoLimit:
    def cancel(self) -> None:
        """Nothing waits."""


def test_modes_are_timed_apart(training):
    one = training(Detailed={"StartStep": 50, "NumSteps": 1})
    one.steps(10, 100)
    one.session.tracker.forced_mode = ModeKeys.EVAL
    one.steps(10, 10)
    assert one.session.slowdown.usual_ns(ModeKeys.TRAIN) == 100 * MS
    assert one.session.slowdown.usual_ns(ModeKeys.EVAL) == 10 * MS
    assert one.session.slowdown.usual_ns(ModeKeys.PREDICT) is None


def test_what_a_helper_waits_for_a_core_is_no_stall(work, clock, monkeypatch):
    """On a busy machine, the calibration of operators counted with several times what it takes."""
    monkeypatch.setattr("sm_profiler.hook.own_work.waited_ns", lambda _file: clock.now // 2)

    def measure():
        clock.now += 40 * MS
        return 3.0

    with work.doing("operators are counted"):
        assert work.elsewhere(measure) == 3.0
    assert work.stalled_ns == 40 * MS - 20 * MS


def test_stalls_never_become_fewer(work, clock, monkeypatch):
    """Main thread and helper wait for a core at once: more was subtracted than had been added, and a report had a record
    of the hook's cost with a negative duration."""
    monkeypatch.setattr("sm_profiler.hook.own_work.waited_ns", lambda _file: clock.now * 9 // 10)
    seen = []

    def measure():
        clock.now += 40 * MS
        seen.append(work.stalled_ns)

    with work.doing("a window starts"):
        clock.now += 4 * MS
    with work.doing("operators are counted"):
        work.elsewhere(measure)
        seen.append(work.stalled_ns)  # a beat of the recorder may be at any moment
        clock.now += 4 * MS
    seen.append(work.stalled_ns)
    assert seen == [3 * MS, 3 * MS, 3 * MS + 4 * MS + 3 * MS]


def test_what_a_helper_waits_after_it_was_given_up_is_not_subtracted_from_other_work(work, clock, monkeypatch):
    waits = [0]
    monkeypatch.setattr("sm_profiler.hook.own_work.waited_ns", lambda _file: waits[0])

    def wait():
        waits[0] += 100 * MS

    work.elsewhere(wait)
    with work.doing("a window starts"):
        clock.now += 4 * MS
    assert work.stalled_ns == 3 * MS
