"""Waits that are read after their steps were recorded, from made-up times."""

import pytest

from sm_profiler.formats.event_names import COMPILED_STEP
from sm_profiler.hook.modes import STEP, ModeKeys
from sm_profiler.hook.steps import WAITED, WAITED_UNRECORDED, StepTracker
from sm_profiler.hook.tensorflow.pipelines import LateWaits
from sm_profiler.hook.tensorflow.stopwatch import Times

TRAIN = STEP[ModeKeys.TRAIN]


def step(number, *, more=WAITED):
    """Return the records of a step of 100 ns that Keras marks; a new one begins every 200 ns."""
    start = 200 * number
    return [
        (TRAIN, TRAIN, start, start + 100, number, more),
        (COMPILED_STEP, "train_function", start, start + 100, number, None),
    ]


def late_waits(*times):
    waits = [Times(*one) for one in times]
    return LateWaits(lambda end: [waits.pop(0) for one in list(waits) if one.start_ns < end])


def shown(records):
    return [(phase.partition(":")[0], start, end) for phase, _, start, end, _, _ in records]


def test_each_step_has_its_own_wait():
    late = late_waits((210, 250), (420, 430))
    found = late.complete([record for number in range(3) for record in step(number)])
    assert shown(found) == [
        ("Step", 0, 100), (COMPILED_STEP, 0, 100),
        ("DataLoaderWait", 200, 240), ("Step", 240, 300), (COMPILED_STEP, 240, 300),
        ("DataLoaderWait", 400, 410), ("Step", 410, 500), (COMPILED_STEP, 410, 500),
    ]  # fmt: skip
    assert all(record[5] is None for record in found)


def test_records_may_come_one_by_one():
    late = late_waits((210, 250))
    records = [record for number in range(2) for record in step(number)]
    found = [one for record in records for one in late.complete([record])]
    assert shown(found)[2:] == [("DataLoaderWait", 200, 240), ("Step", 240, 300), (COMPILED_STEP, 240, 300)]


def test_a_step_without_phases_has_no_wait_of_its_own():
    assert shown(late_waits((10, 50)).complete(step(0, more=WAITED_UNRECORDED)[:1])) == [("Step", 40, 100)]


def test_waits_between_steps_are_those_of_callbacks():
    late = late_waits((-500, -5), (10, 50), (120, 190), (195, 220))
    found = late.complete([*step(0), *step(1)])
    assert [one for one in shown(found) if one[0] == "DataLoaderWait"] == [
        ("DataLoaderWait", 0, 40), ("DataLoaderWait", 200, 220),
    ]  # fmt: skip


@pytest.mark.parametrize("more", [None, {"batches": 8}])
def test_other_steps_stay_as_they_are(more):
    records = step(0, more=more)
    assert late_waits((10, 50)).complete(records) is records


def test_a_step_that_is_to_be_completed_is_marked_once():
    found = []
    tracker = StepTracker(found.append)
    for later in (True, False):
        tracker.begin_step(1, gradients=True)
        tracker.waits_later = later
        tracker.end_step(2)
    assert found[0][5] is WAITED
    assert found[1][5] is None
