"""Callbacks of Keras in steps of a rest: they are not timed, and count as in the others."""

from types import SimpleNamespace

import pytest

from sm_profiler.hook.keras import Callbacks

MS = 1_000_000


@pytest.fixture
def records():
    return []


@pytest.fixture
def callbacks(records):
    return Callbacks(SimpleNamespace(append=records.append))


def timed(callbacks, name: str, calls: int, each_ns: int):
    """Return a method that was timed in some steps."""
    method = callbacks._times.callback(name, None)
    callbacks._batches[method] = [calls, calls * each_ns]
    return method


def starts_and_ends(*between_ns: int) -> tuple[list[int], list[int]]:
    """Return steps of 2 ms with so much time between them."""
    starts, ends = [0], [2 * MS]
    for more in between_ns:
        starts.append(ends[-1] + more)
        ends.append(starts[-1] + 2 * MS)
    return starts, ends


def calls_of(records) -> list[tuple[str, int, int]]:
    return [(name, more["calls"], end - start) for _, name, start, end, _, more in records]


def test_each_step_counts_with_what_the_calls_took_that_were_timed(callbacks, records):
    timed(callbacks, "Turn.on_train_batch_end", 10, 5000)
    callbacks.rested(*starts_and_ends(*[20_000] * 7), 5)
    callbacks.beat()
    assert calls_of(records) == [("Turn.on_train_batch_end", 8, 8 * 5000)]


def test_what_takes_long_between_two_steps_is_a_call(callbacks, records):
    timed(callbacks, "Turn.on_train_batch_end", 10, 5000)
    callbacks.rested(*starts_and_ends(20_000, 20_000, 3 * MS + 20_000, 20_000), 5)
    callbacks.beat()
    assert ("Turn.on_train_batch_end", 1, 3 * MS) in calls_of(records)
    assert [step for *_, step, more in records if more["calls"] == 1] == [7]


def test_which_of_several_took_long_is_not_known(callbacks, records):
    for name in ("First.on_train_batch_end", "Second.on_train_batch_end"):
        timed(callbacks, name, 10, 5000)
    callbacks.rested(*starts_and_ends(20_000, 3 * MS, 20_000), 5)
    callbacks.beat()
    assert [calls for _, calls, _ in calls_of(records)] == [4, 4]


def test_without_any_timed_call_nothing_counts(callbacks, records):
    timed(callbacks, "Turn.on_train_batch_end", 0, 0)
    callbacks.rested([0], [], 5)
    callbacks.beat()
    assert records == []
