"""Ticks stand on the clock: what is late is counted, and moves nothing that comes after it."""

import pytest

from sm_profiler.monitor.clock import Ticker


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize("interval", [0.1, 0.2, 0.5, 1, 5, 60])
def test_ten_thousand_ticks_do_not_drift(interval):
    clock = Clock()
    ticker = Ticker(interval, clock)
    for number in range(1, 10_001):
        clock.now += ticker.wait_seconds()
        assert clock.now == pytest.approx(100 + number * interval, abs=1e-6)
        clock.now += 0.003  # what a tick takes, and the scheduler adds
        ticker.advance()
    assert (ticker.late, ticker.missed) == (0, 0)


def test_a_late_tick_is_counted_and_the_next_one_is_on_time():
    clock = Clock()
    ticker = Ticker(0.5, clock)
    clock.now += 0.8
    assert ticker.wait_seconds() == 0
    ticker.advance()
    assert (ticker.late, ticker.missed) == (1, 0)
    assert clock.now + ticker.wait_seconds() == pytest.approx(101.0)


def test_ticks_that_can_no_longer_be_caught_up_are_left_out_and_counted():
    clock = Clock()
    ticker = Ticker(0.5, clock)
    clock.now += 2.7  # due at 100.5, 101, 101.5, 102, 102.5
    ticker.advance()
    assert (ticker.late, ticker.missed) == (1, 4)
    assert clock.now + ticker.wait_seconds() == pytest.approx(103.0)
