"""Waits for data that computation hides, from made-up times of a run of several batches."""

import pytest

from sm_profiler.hook.tensorflow.pipelines import Overlap
from sm_profiler.hook.tensorflow.stopwatch import Times

BATCHES = 8


def side_by_side(fetch, compute):
    """Return the fetches of a run that requests a batch as it begins to compute the one before, and the run's end."""
    waits, now = [Times(0, fetch)], fetch
    for _ in range(BATCHES - 1):
        waits.append(Times(now, now + fetch))
        now += max(fetch, compute)
    return waits, now + compute


def in_turn(fetch, compute):
    """Return the same for a loop that requests a batch after it has computed the one before."""
    starts = range(0, BATCHES * (fetch + compute), fetch + compute)
    return [Times(start, start + fetch) for start in starts], BATCHES * (fetch + compute)


@pytest.mark.parametrize(("fetch", "compute"), [(50, 10), (50, 49), (10, 50), (50, 1)])
def test_waits_and_computation_make_the_run(fetch, compute):
    waits, end = side_by_side(fetch, compute)
    waited = sum(one.end_ns - one.start_ns for one in waits) - Overlap().hidden(waits, end)
    assert waited + BATCHES * compute == end


def test_nothing_is_hidden_where_one_follows_the_other():
    assert Overlap().hidden(*in_turn(50, 20)) == 0
    assert Overlap().hidden([Times(0, 50)], 60) == 0
    assert Overlap().hidden([], 60) == 0


def test_a_single_slow_end_of_a_run_hides_no_more_than_usual():
    overlap = Overlap()
    waits, end = side_by_side(50, 10)
    for late in (0, 5, 500):
        assert overlap.hidden(waits, end + late) == (BATCHES - 1) * 10


def test_training_and_evaluation_compute_for_different_times():
    overlap = Overlap()
    assert overlap.hidden(*side_by_side(50, 10), "evaluation") == (BATCHES - 1) * 10
    assert overlap.hidden(*side_by_side(50, 30), "training") == (BATCHES - 1) * 30
