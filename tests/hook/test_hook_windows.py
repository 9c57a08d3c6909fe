"""Every row of the table of ranges, with a fake clock."""

import pytest

from sm_profiler.config import CollectorConfig as Range
from sm_profiler.hook.adapter import Collector
from sm_profiler.hook.windows import Schedule, Window


def active_steps(window: Window, steps, *, seconds_a_step: float = 1.0, start: float = 1000.0) -> list[int]:
    return [s for i, s in enumerate(steps) if window.at_step(s, start + i * seconds_a_step, i * seconds_a_step)]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (Range(start_step=5, num_steps=2), [5, 6]),
        (Range(start_step=0, num_steps=1), [0]),
        (Range(num_steps=3), [0, 1, 2]),
        (Range(start_step=4), [4]),
        (Range(start_time=1003.0, duration=2.0), [3, 4]),
        (Range(start_time=1002.5, duration=2.0), [3, 4]),
        (Range(duration=3.0), [0, 1, 2]),
        (Range(start_time=1004.0), [4]),
        (Range(start_time=1002.2, duration=0.5), [3]),  # no step begins inside: the first one after its start
        (Range(start_time=900.0, duration=5.0), [0]),  # over before the job began
        (Range(duration=float("inf")), list(range(10))),
        (Range(), []),
    ],
)
def test_each_kind_of_range(given, expected):
    assert active_steps(Window(given), range(10)) == expected


def test_steps_only_counts_from_the_first_step_seen():
    assert active_steps(Window(Range(num_steps=2)), range(7, 12)) == [7, 8]
    assert active_steps(Window(Range(duration=2.0)), range(7, 12)) == [7, 8]


def test_a_window_that_ended_never_reopens():
    window = Window(Range(start_time=1001.0, duration=2.0))
    assert [
        window.at_step(s, now, mono) for s, (now, mono) in enumerate([(1001, 1), (1002, 2), (1003, 3), (1001, 4)])
    ] == [
        True,
        True,
        False,
        False,
    ]
    assert window.ended


def test_a_window_whose_steps_have_passed_stays_closed():
    window = Window(Range(start_step=2, num_steps=2))
    assert active_steps(window, range(8, 12)) == []
    assert window.ended


@pytest.mark.parametrize("jump", [-3600.0, 3600.0])
def test_a_clock_adjustment_neither_shortens_nor_stretches_an_open_window(jump):
    window = Window(Range(start_time=1000.0, duration=4.0))
    walls = [1000.0, 1001.0, 1002.0 + jump, 1003.0 + jump, 1004.0 + jump]
    assert [window.at_step(s, wall, float(s)) for s, wall in enumerate(walls)] == [True, True, True, True, False]


class Interrupted(Collector):
    """A collector that a signal interrupts as its window begins."""

    name = "Interrupted"

    def __init__(self, error):
        self.error = error
        self.events = []

    def enter(self, _step):
        self.events.append("enter")
        raise self.error

    def leave(self, _step):
        self.events.append("leave")

    def failed(self):
        self.events.append("failed")
        raise MemoryError("memory was exhausted while profiling")


def test_a_window_that_the_script_interrupts_is_over():
    error, notes = KeyboardInterrupt(), {}
    collector = Interrupted(error)

    def run(_collector, action, *args):
        action(*args)
        return True

    schedule = Schedule(lambda _: False, run, notes.__setitem__)
    schedule.configure({"Interrupted": Range(start_step=0, num_steps=3)})
    schedule.collectors["Interrupted"] = collector
    with pytest.raises(KeyboardInterrupt):
        schedule.at_step(0)
    assert schedule.at_step(1)
    schedule.close()
    assert collector.events == ["enter", "failed"]
    assert notes == {"Interrupted": "ended early: the script's KeyboardInterrupt interrupted it"}


class Prepared(Collector):
    """A collector that is prepared before its window."""

    name = "Prepared"
    at: int | None = None

    def __init__(self):
        self.step = 0

    def prepare(self):
        self.at = self.step


@pytest.mark.parametrize(
    ("given", "at"),
    [
        (Range(start_step=5, num_steps=1), 1),
        (Range(start_step=2, num_steps=1), 1),
        (Range(start_step=1, num_steps=1), 0),
        (Range(start_step=0, num_steps=1), 0),
        (Range(duration=5.0), 0),
    ],
)
def test_a_collector_is_prepared_after_the_first_step_if_its_window_comes_later(given, at):
    """In the first step, scripts import what the collector needs, too."""
    collector = Prepared()

    def run(_collector, action, *args):
        action(*args)
        return True

    schedule = Schedule(lambda _: False, run, {}.__setitem__)
    schedule.configure({"Prepared": given})
    schedule.collectors["Prepared"] = collector
    for collector.step in range(4):
        schedule.at_step(collector.step)
    assert collector.at == at
