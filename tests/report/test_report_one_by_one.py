"""JAX's operations that run one by one: steps without jax.jit, or with a part of them compiled."""

import attrs
import pytest

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.profile.case import Case
from sm_profiler.diagnosis.profile.verdict import decide
from sm_profiler.formats import event_names
from sm_profiler.metrics.sample_fold import Place, Sampled, Samples
from tests.support.reports import JAX, compiled, metrics_of

STEPS = 400


def verdict(  # one argument a part, each with a default
    call=0.01, outside=0.0, *, fixed_us=0.0, leaf="", sampled=0.0, metadata=JAX, phase="outside", count=200
):
    """Judge a loop: operations in its call, and samples of what runs outside for a share of the time."""
    rows = compiled(STEPS, call=call, outside=outside)
    metrics = metrics_of(rows, metadata=metadata)
    if fixed_us:
        args = {"operators": 100, "fixed_us": fixed_us, "call_us": call * 1e6}
        rows.append((event_names.OPERATORS, "operators", 2.0, 0.0, "algo-1-0", 100, args))
        metrics = metrics_of(rows, metadata=metadata)
    if sampled:
        spent = metrics.ranks[0].loop * sampled
        place = Place("train.py", 12, "train")
        stack = Sampled("algo-1-0", phase, long=False, places=(place,), leaf=leaf, seconds=spent, count=count)
        metrics = attrs.evolve(metrics, samples=Samples((stack,), {("train.py", 12): "grads = tx.update(grads)"}))
    context = Case(metrics, {})
    return decide(context).main


def test_gradients_that_are_not_compiled_are_named_with_their_cost():
    found = verdict(fixed_us=80)
    assert found.kind is Class.HOST_BOUND
    assert found.share_of_time == pytest.approx(0.8, rel=0.02)
    assert "100 operations of the gradients at 80 µs each" in found.headline
    assert "jax.jit(step)" in found.next_step


@pytest.mark.parametrize(
    ("fixed_us", "kind"), [(100 * limits.NOTICEABLE * 1.1, Class.HOST_BOUND), (20, Class.BALANCED)]
)
def test_operations_that_compute_for_long_are_no_finding(fixed_us, kind):
    assert verdict(fixed_us=fixed_us).kind is kind


def test_an_update_outside_the_compiled_gradients_is_named_with_its_line():
    found = verdict(call=0.002, outside=0.003, leaf="jax._src.numpy.array_methods.deferring_binary_op", sampled=0.55)
    assert found.kind is Class.HOST_BOUND
    assert "into the compiled function" in found.next_step
    assert (found.where[0].file, found.where[0].line) == ("train.py", 12)


@pytest.mark.parametrize("count", [31, 6])
def test_an_update_that_takes_most_of_a_long_step_is_no_other_code(count):
    """Its next step was to let loader workers prepare batches: all that is outside the phases seemed to save more."""
    leaf = "jax._src.numpy.ufunc_api.ufunc.__call__"
    found = verdict(call=0.002, outside=0.022, leaf=leaf, sampled=0.85, count=count)
    assert found.kind is Class.HOST_BOUND
    assert "Compile these lines with jax.jit" in found.next_step
    assert found.where[0].line == 12


@pytest.mark.parametrize(
    "leaf", ["jax._src.array.ArrayImpl._value", "jax._src.api.block_until_ready", "numpy.sort", ""]
)
def test_waiting_for_results_and_other_work_are_not_operations(leaf):
    assert verdict(call=0.002, outside=0.003, leaf=leaf, sampled=0.55).kind is not Class.HOST_BOUND


def test_a_compiled_step_that_waits_in_its_call_is_not_judged_by_its_samples():
    assert verdict(leaf="jax._src.pjit.call", sampled=0.9, phase="compiled").kind is Class.BALANCED


def test_other_frameworks_are_not_judged():
    assert verdict(fixed_us=80, metadata=({"framework": "pytorch"},)).kind is not Class.HOST_BOUND


def test_compiling_may_save_what_the_operations_compute_too():
    gain = verdict(fixed_us=60).gain  # 6 of 10 ms are launches
    assert gain.share_of_loop.low <= 0.6
    assert gain.share_of_loop.high > 0.9
    sampled = verdict(0.001, outside=0.009, leaf="jax._src.numpy.ufunc_api", sampled=0.6).gain
    assert sampled.share_of_loop.low <= 0.6
    assert 0.85 < sampled.share_of_loop.high <= 0.91  # what is compiled stays
