"""Cost of JAX's operations that run one by one, measured with a fake clock."""

import threading
from types import SimpleNamespace

import pytest

from sm_profiler.formats.event_names import OPERATORS
from sm_profiler.formats.recorded import Operators
from sm_profiler.hook.jax.calls import COMPILING, FIRST, OneByOne
from sm_profiler.hook.patches import Patches


class Clock:
    now = 0

    def __call__(self):
        return self.now


@pytest.fixture
def measured():
    clock, records = Clock(), []

    class EvalTrace:
        def process_primitive(self, nanoseconds, inner=0):
            clock.now += nanoseconds
            if inner:
                EvalTrace().process_primitive(inner)
            if nanoseconds < 0:
                raise ValueError
            return nanoseconds

    patches, one_by_one = Patches(print), OneByOne(records.append, clock)
    core = SimpleNamespace(EvalTrace=EvalTrace)
    original = EvalTrace.process_primitive
    one_by_one.watch(patches, core)
    one_by_one.watch(patches, core)
    return SimpleNamespace(
        clock=clock, records=records, trace=EvalTrace(), patches=patches, one_by_one=one_by_one, original=original
    )


def call(measured, *operations, python=0):
    start = measured.clock.now
    measured.one_by_one.begins()
    for one in operations:
        measured.trace.process_primitive(one)
        measured.clock.now += python
    measured.one_by_one.ended(measured.clock.now - start, 7)


def test_python_between_operations_and_the_cheapest_of_them_are_the_fixed_cost(measured):
    for _ in range(FIRST):
        call(measured, *[5_000] * 8, 1_000_000, 2_000_000, python=50_000)
    ((phase, _, _, _, step, args),) = measured.records
    assert (phase, step) == (OPERATORS, 7)
    assert args == Operators(operators=10, fixed_us=55.0, call_us=3540.0).args()


def test_records_become_rarer(measured):
    for _ in range(FIRST * 15):
        call(measured, 1000, python=10)
    assert len(measured.records) == 4


def test_what_an_operation_runs_is_part_of_it(measured):
    start = measured.clock.now
    for _ in range(FIRST):
        measured.one_by_one.begins()
        measured.trace.process_primitive(1000, inner=9000)
        measured.one_by_one.ended(10_000, 0)
    assert measured.records[0][5] == {"operators": 1, "fixed_us": 10.0, "call_us": 10.0}
    assert measured.clock.now > start


def test_operations_of_other_threads_are_not_part_of_the_call(measured):
    for _ in range(FIRST):
        start = measured.clock.now
        measured.one_by_one.begins()
        measured.trace.process_primitive(1000)
        loader = threading.Thread(target=measured.trace.process_primitive, args=(0,))
        loader.start()
        loader.join()
        measured.one_by_one.ended(measured.clock.now - start, 0)
    assert measured.records[0][5]["operators"] == 1


def test_outside_a_measured_call_nothing_is_kept(measured):
    assert measured.trace.process_primitive(5) == 5
    measured.one_by_one.ended(5, 0)
    measured.one_by_one.begins()
    with pytest.raises(ValueError):
        measured.trace.process_primitive(-1)
    measured.one_by_one.failed()
    measured.one_by_one.ended(5, 0)
    assert not measured.records


def test_the_wrapper_is_removed(measured):
    kind = type(measured.trace)
    assert kind.process_primitive is not measured.original
    measured.patches.remove()
    assert kind.process_primitive is measured.original


def test_a_version_without_that_function_is_left_alone():
    OneByOne([].append).watch(Patches(print), SimpleNamespace())


def test_a_short_training_is_measured_too(measured):
    """Of 61 steps, metering chose three: its operations had no cost, and a training without jax.jit was healthy."""
    due = [measured.one_by_one.is_due(metering=False) for _ in range(40)]
    assert due == [False] * COMPILING + [True] * FIRST + [False] * (40 - COMPILING - FIRST)
    assert measured.one_by_one.is_due(metering=True)
