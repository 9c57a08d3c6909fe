"""The overhead budget, through the recorder's beat and with a fake clock: what is shed, and how sparse phases become."""

import json
import math
from collections import deque
from types import SimpleNamespace

import pytest

from sm_profiler.config import CollectorConfig
from sm_profiler.formats.trace_writer import TraceWriter
from sm_profiler.hook.clock import Timebase
from sm_profiler.hook.guard import Guard
from sm_profiler.hook.overhead import (
    BYTES_PER_MINUTE,
    ENOUGH,
    MAX_EVERY,
    MAX_EVERY_FOR_BYTES,
    OVER,
    OVER_IN_WINDOW,
    THRIFT,
    UNDER,
    UNSEEN,
    OverheadController,
)
from sm_profiler.hook.own_work import OwnWork
from sm_profiler.hook.recorder import MAX_STRETCH, Recorder
from sm_profiler.hook.rest import Rest
from sm_profiler.hook.steps import METER_EVERY, StepTracker
from sm_profiler.hook.windows import Window

STEPS = 1000  # a second
CHEAP, EXPENSIVE = (
    1_000,
    3_700,
)  # own nanoseconds a step, a third of the cost; 8 µs are allowed on steps of a millisecond
IN_WINDOW = 40_000  # while a window is open, 90 µs are


class Training:
    """A training of 1,000 steps a second whose recorder beats once a second."""

    def __init__(self, folder, **windows) -> None:
        self.now, self.waited = 0.0, 0  # seconds; ns without a core
        self.tracker = StepTracker(lambda _: None)
        self.shed, self.windows = [], {name: self.window(active) for name, active in windows.items()}
        self.work = OwnWork(lambda _: None)
        self.controller = OverheadController(
            self.tracker, self.windows, self.shed.append, clock=lambda: self.now, own_cpu=lambda: 0.0, work=self.work,
            waited=lambda: self.waited,
        )  # fmt: skip
        self.writer = TraceWriter(folder, "0-algo-1")
        self.recorder = Recorder(
            self.writer,
            Timebase(),
            Guard(),
            controller=self.controller,
            events=deque(),
            work=self.work,
            on_beat=lambda: None,
        )
        self.recorder.beat()

    @staticmethod
    def window(active: bool) -> Window:
        window = Window(CollectorConfig(start_step=0, num_steps=10**9))
        window.active = active
        return window

    def second(self, cost_ns: int, *, steps: int = STEPS, written: int = 0) -> int:
        self.now += 1.0
        self.tracker.global_step += steps
        self.tracker.own_ns += round(steps / METER_EVERY * cost_ns)
        self.writer.written += written
        self.recorder.beat()
        return self.tracker.every

    def seconds(self, count: int, cost_ns: int, **more: int) -> list[int]:
        return [self.second(cost_ns, **more) for _ in range(count)]

    def overhead(self) -> dict:
        (event,) = [event for event in self.recorder.events if event.phase == "sm_profiler/overhead"]
        return json.loads(event.args)


@pytest.fixture
def training(tmp_path):
    return Training(tmp_path)


def test_phases_become_sparser_as_long_as_the_hook_is_over_its_budget(training):
    """The second time in a row decides."""
    assert training.seconds(6, EXPENSIVE) == [1, 3, 3, 7, 7, 15]
    assert training.seconds(60, EXPENSIVE)[-1] == MAX_EVERY


def test_they_become_as_sparse_at_once_as_the_cost_demands(training):
    assert training.seconds(2, 10 * EXPENSIVE) == [1, 15]  # 14 times the budget


def test_phases_stay_sparse_until_the_hook_was_well_under_its_budget_for_a_minute(training):
    training.seconds(2 * OVER, EXPENSIVE)
    assert training.tracker.every == 7
    assert training.seconds(2 * UNDER, 2_000) == [7] * 2 * UNDER  # within the budget, more than half of it
    assert training.seconds(2 * UNDER, CHEAP // 2) == [7] * (UNDER - 1) + [3] * UNDER + [1]


def test_a_slow_loop_is_judged_once_there_are_enough_steps(training):
    """Fewer than 17 steps a second were never judged, however much they cost."""
    found = training.seconds(10, 50_000_000, steps=4)  # each judgement takes five seconds
    assert found[8:] == [1, 127]  # 75 times the budget


def test_one_judgement_over_the_budget_changes_nothing(training):
    for _ in range(5):
        assert training.seconds(2, CHEAP) + training.seconds(1, EXPENSIVE) == [1] * 3


def test_open_windows_are_shed_first_and_once(tmp_path):
    training = Training(tmp_path, python=False, detailed=True, dataloader=True)
    training.seconds(10 * OVER_IN_WINDOW, EXPENSIVE)
    assert training.shed == []
    assert training.seconds(2 * OVER_IN_WINDOW, IN_WINDOW) == [1] * 2 * OVER_IN_WINDOW
    assert training.shed == ["detailed", "dataloader"]
    assert training.controller.shed == {"detailed", "dataloader"}
    assert training.seconds(OVER, EXPENSIVE)[-1] == 3


def test_too_many_bytes_make_phases_sparser_within_limits(training):
    too_many = BYTES_PER_MINUTE / 60 * 2
    assert training.seconds(6, CHEAP, written=too_many) == [3, 7, 15, 15, 15, 15]
    assert MAX_EVERY_FOR_BYTES == 15
    assert training.seconds(5, CHEAP, written=10) == [7, 3, 1, 1, 1]


def test_the_larger_of_both_demands_wins(training):
    training.seconds(2 * OVER, EXPENSIVE)
    assert training.tracker.every == 7
    assert training.second(CHEAP, written=BYTES_PER_MINUTE) == 15
    assert training.seconds(3, CHEAP) == [7, 7, 7]


def test_each_beat_records_the_measured_overhead(training):
    training.recorder.events.clear()
    training.recorder.writer = SimpleNamespace(written=0, dropped=0)
    training.now += 1.0
    training.tracker.global_step += STEPS
    training.tracker.own_ns += round(STEPS / METER_EVERY * EXPENSIVE)
    training.recorder._control_overhead()
    args = training.overhead()
    assert args["steps"] == STEPS
    assert args["training_us"] == pytest.approx(UNSEEN * EXPENSIVE, rel=0.02)
    assert args["background_us"] == 0
    assert (args["phases_every"], args["dropped"]) == (1, 0)


def test_windows_in_the_first_second_count(tmp_path):
    """A fast loop was through all of them before the first beat, which counted as the start."""
    training = Training(tmp_path)
    training.controller.reset()
    training.recorder.events.clear()
    training.controller.begin()
    training.work.stalled_ns += 700_000_000
    training.second(CHEAP)
    assert training.overhead()["windows_us"] == 700_000


def test_what_the_last_beat_did_not_see_counts(training):
    training.second(CHEAP)
    training.work.stalled_ns += 300_000_000  # a window is closed at the end, when no step follows
    found = training.controller.end()
    assert (found["steps"], found["windows_us"]) == (0, 300_000)


def test_work_beside_a_long_step_counts_with_the_step(training):
    cpu = [0.0]
    training.controller._own_cpu = lambda: cpu[0]
    for _ in range(9):
        cpu[0] += 0.01
        training.second(0, steps=0)
    cpu[0] += 0.01
    training.second(0, steps=1)
    assert training.overhead()["background_us"] == 100_000


def test_the_budget_is_a_share_of_the_time_in_which_the_training_has_a_core(training):
    assert training.seconds(OVER + 1, CHEAP) == [1] * (OVER + 1)
    for _ in range(OVER):
        training.waited += 800_000_000
        training.second(CHEAP)
    assert training.tracker.every == 3


def test_a_training_without_a_core_has_longer_seconds(training, monkeypatch):
    now, waited, stretch = [0], [0], training.recorder._stretch
    monkeypatch.setattr("sm_profiler.hook.recorder.time.perf_counter_ns", lambda: now[0])
    monkeypatch.setattr("sm_profiler.hook.recorder.waited_ns", lambda: waited[0])
    found = []
    for more in (0, 0, 500, 950):
        now[0], waited[0] = now[0] + 1000, waited[0] + more
        found.append(stretch())
    assert found[1:] == [1.0, 2.0, MAX_STRETCH]


def rest(training, steps: int) -> None:
    training.tracker.rested += steps
    training.tracker.rests_us += steps * Rest.cost_us


def compare(training, cost_us: float, *, count: int = ENOUGH, others: tuple[float, ...] = ()) -> None:
    if training.tracker.every == 1:  # steps lie between rests
        training.controller._every_for_time = training.tracker.every = 3
    training.tracker.compared.ns.extend([cost_us * 1000 + number for number in range(count)] + [*others])


def test_what_steps_cost_that_were_compared_replaces_the_clock_of_the_callbacks(training):
    compare(training, 80.0, count=ENOUGH - 1)
    assert training.controller.observed_us is None
    assert training.second(CHEAP) == 3
    compare(training, 80.0, count=1)
    assert training.seconds(2, 0) == [3, 31]  # ten times the budget
    training.recorder.events.clear()
    rest(training, 900)
    training.second(0)
    assert training.overhead()["training_us"] == pytest.approx(100 * 80 + 900 * Rest.cost_us, rel=0.01)


def test_earlier_steps_cost_what_was_found_later(training):
    compare(training, 80.0, count=0)
    training.second(CHEAP)
    compare(training, 80.0)
    training.recorder.events.clear()
    training.second(CHEAP)
    assert training.overhead()["training_us"] == pytest.approx(2 * STEPS * 80 - UNSEEN * CHEAP, rel=0.02)


def test_steps_are_compared_anew_once_rests_are_longer(training):
    compare(training, 80.0)
    training.seconds(2, 0)
    assert not training.tracker.compared.ns
    assert training.controller.observed_us == pytest.approx(80, rel=0.01)
    compare(training, 200.0)
    assert training.controller.observed_us == pytest.approx(200, rel=0.01)


def test_steps_that_were_interrupted_do_not_count(training):
    compare(training, 80.0, count=20, others=(-900_000, 5_000_000, 30_000_000))
    assert training.controller.observed_us == pytest.approx(80, rel=0.01)


def test_what_threads_take_is_no_reason_for_no_phases(training):
    """An eighth of the budget is left to the callbacks, which could not make up for them; the sampler saves instead."""
    assert training.controller.share == 1.0
    cpu = [0.0]
    training.controller._own_cpu = lambda: cpu[0]
    compare(training, 7.9)
    for _ in range(10):
        cpu[0] += 0.02
        rest(training, STEPS - STEPS // training.tracker.every)
        training.second(0)
    assert training.tracker.every == 15
    assert training.controller.share == pytest.approx(1 / THRIFT)


def test_all_that_the_hook_does_is_within_the_budget(training):
    """The callbacks had half of it, although threads and rests took all."""
    cpu = [0.0]
    training.controller._own_cpu = lambda: cpu[0]
    compare(training, 40.0)
    for _ in range(10):
        cpu[0] += 0.005
        rest(training, STEPS - STEPS // training.tracker.every)
        training.second(0)
    every = training.tracker.every
    assert every == 63
    assert 5.0 + Rest.cost_us + 40.0 / every < 8.0


def test_steps_that_are_metered_are_not_those_whose_phases_are_recorded():
    every = 1
    while every <= MAX_EVERY:
        assert math.gcd(every, METER_EVERY) == 1
        every = 2 * every + 1
