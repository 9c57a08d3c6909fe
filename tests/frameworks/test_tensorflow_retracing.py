"""Traces of `tf.function` beside the first run of what they made, by a fake clock."""

from types import SimpleNamespace

import numpy as np
import pytest

from sm_profiler.formats.recorded import Compile
from sm_profiler.hook.tensorflow.compilations import MAX_TENSORS, MAX_WAITING, Retracing, another, shapes


@pytest.fixture
def traces():
    """Return the collector, its records, and a function that runs a traced call of 10 + 30 ns by its clock."""
    records, now = [], [0]
    collector = Retracing(records.append, lambda: 7, clock=lambda: now[0])
    collector.start()

    def trace(*_args):
        now[0] += 10

    create = collector.wrap_trace(trace)

    def call(quickest=None, *, held=True):
        collector.is_called = lambda: held
        options = SimpleNamespace(name="step", function_cache=None, python_function=None)
        create(None, None, None, options)
        now[0] += 30
        if held:
            collector.call_ended(now[0], quickest)

    return collector, records, call


def test_a_trace_includes_what_its_first_run_takes_beyond_others(traces):
    _, records, call = traces
    call(quickest=5)
    ((phase, name, start, end, step, _),) = records
    assert (phase, name, step) == ("sm_profiler/compile", "step", 7)
    assert end - start == 10 + 30 - 5


def test_without_another_run_only_the_trace_counts(traces):
    _, records, call = traces
    call()
    ((*_, start, end, _, _),) = records
    assert end - start == 10


def test_a_first_run_that_is_not_longer_takes_nothing_away(traces):
    _, records, call = traces
    call(quickest=500)
    ((*_, start, end, _, _),) = records
    assert end - start == 10


def test_a_trace_outside_of_calls_is_recorded_at_once(traces):
    _, records, call = traces
    call(held=False)
    assert len(records) == 1


def test_a_model_that_is_compiled_anew_is_compiled_again(traces):
    collector, records, call = traces
    collector.anew = "the script called compile() again"
    call()
    call()
    assert [args["again"] for *_, args in records] == [True, False]
    assert records[0][-1]["reason"] == "the script called compile() again"


def test_a_call_that_never_ends_keeps_its_traces(traces):
    collector, records, _ = traces
    collector.held.append(("sm_profiler/compile", "step", 0, 10, 1, {"again": False}))
    collector.close()
    assert len(records) == 1


FIRST, SECOND = 1, 2  # functions


def held_back(traces, function, *, xla=False):
    """Trace a function in its first call, of 10 + 30 ns."""
    collector, _, call = traces
    call_ended, collector.call_ended = (
        collector.call_ended,
        lambda end, _: collector.wait_for_run(function, end, xla=xla),
    )
    call()
    collector.call_ended = call_ended


def test_the_next_run_shows_what_the_first_took_beyond_it(traces):
    collector, records, _ = traces
    held_back(traces, FIRST)
    collector.ran(SECOND, 1)
    assert not records
    collector.ran(FIRST, 4)
    ((*_, start, end, step, _),) = records
    assert (end - start, step) == (10 + 30 - 4, 7)
    collector.ran(FIRST, 4)
    assert len(records) == 1


@pytest.mark.parametrize("xla", [False, True])
def test_of_a_function_that_never_runs_again_only_the_trace_counts(traces, xla):
    collector, records, _ = traces
    held_back(traces, FIRST, xla=xla)
    collector.close()
    ((*_, start, end, _, _),) = records
    assert end - start == 10


def test_no_more_than_some_calls_are_held_back(traces):
    _, records, _ = traces
    for number in range(MAX_WAITING + 1):
        held_back(traces, number)
    assert len(records) == 1


def test_what_xla_compiles_without_a_trace_is_its_call_without_a_run(traces):
    collector, records, _ = traces
    collector.compiled("step", -50, Compile(compiler="XLA", again=True, reason="shape is (2,), was (1,)"))
    collector.call_ended(0, 20)
    ((phase, name, start, end, step, args),) = records
    assert (phase, name, end - start, step) == ("sm_profiler/compile", "step", 30, 7)
    assert args["compiler"] == "XLA"


def test_a_call_of_usual_length_compiled_nothing(traces):
    collector, records, _ = traces
    collector.compiled("step", -50, Compile(compiler="XLA", again=True, reason="shape is (2,), was (1,)"))
    collector.forget_compiled()
    collector.call_ended(0, 20)
    assert not records


def test_a_forked_child_holds_nothing_back(traces):
    collector, records, _ = traces
    held_back(traces, FIRST)
    collector.forked()
    collector.close()
    assert not records


def test_shapes_of_a_call_are_new_once():
    function = SimpleNamespace()
    batches = [({"x": np.zeros((rows, 2))}, [np.zeros(rows)], "text", 3.0) for rows in (4, 4, 3, 4, 3)]
    found = [another(function, batch, {"training": True}) for batch in batches]
    assert found == ["", "", "shape is (3, 2), was (4, 2)", "", ""]


def test_arguments_with_other_kinds_of_shapes_have_none():
    class Shaped:
        shape = np.zeros(3)

    assert another(SimpleNamespace(), (Shaped(),), {}) == ""


def test_nested_arguments_count_to_some_depth():
    nested = [np.zeros(5)]
    nested.append(nested)
    assert set(shapes(nested)) == {(5,)}
    assert len(shapes([np.zeros(1)] * 1000)) == MAX_TENSORS
