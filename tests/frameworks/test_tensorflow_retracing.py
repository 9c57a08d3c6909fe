"""Traces of `tf.function` beside the first run of what they made, by a fake clock."""

from types import SimpleNamespace

import pytest

from sm_profiler.hook.tensorflow.retracing import Retracing


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
    ((phase, name, start, end, step, args),) = records
    assert (phase, name, step) == ("sm_profiler/compile", "step", 7)
    assert end - start == 10 + 30 - 5
    assert "first_us" not in args


def test_without_another_run_the_first_counts_apart(traces):
    _, records, call = traces
    call()
    ((*_, start, end, _, args),) = records
    assert end - start == 10
    assert args["first_us"] == pytest.approx(0.03, abs=0.06)


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
