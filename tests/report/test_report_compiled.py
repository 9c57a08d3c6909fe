"""Loops of compiled functions, which run while the script goes on: steps, waiting for results, tiny steps."""

import numpy as np
import pytest

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.profile.calls import recompilation
from sm_profiler.diagnosis.profile.case import Case
from sm_profiler.diagnosis.profile.ledger import totals_of
from sm_profiler.formats import event_names
from sm_profiler.formats.recorded import Log
from sm_profiler.metrics import step_fold, step_sample
from tests.support.reports import JAX, compiled, metrics_of, verdict_of


def test_waiting_for_results_is_divided_among_the_steps_that_computed_them():
    rows = compiled(400, read=0.4)
    (rank,) = metrics_of(rows, metadata=JAX).ranks
    lengths = rank.iterations.length
    assert lengths[rank.iterations.known] == pytest.approx(0.0201, rel=1e-3)
    assert rank.steps.end[-1] / 1e6 == pytest.approx(rank.end)
    assert rank.seconds["compiled"] == pytest.approx(rank.loop, rel=1e-3)
    assert (np.diff(rank.steps.start) > 0).all()


def test_steps_after_the_last_results_keep_their_length():
    rows = compiled(50, read=0.4)
    (rank,) = metrics_of(rows, metadata=JAX).ranks
    assert rank.steps.duration[:40] / 1e6 == pytest.approx(0.0201)
    assert rank.steps.duration[40:] / 1e6 == pytest.approx(0.0001)


def queued(steps, *, burst=32, compute=0.004, call=0.0001):
    """Return a loop that reads no results: when too many computations wait, a call waits until they have run."""
    rows, now = [], 1.0
    for step in range(steps):
        begin = now
        rows.append((event_names.COMPILED_STEP, "train_step", now, call, "algo-1-0", step))
        now += call
        if step % burst == burst - 1:
            waited = burst * (compute - call)
            rows.append((event_names.QUEUED, "train_step", now, waited, "algo-1-0", step))
            now += waited
        rows.append(("Step:ModeKeys.TRAIN", "Step:ModeKeys.TRAIN", begin, now - begin, "algo-1-0", step))
    return rows


def test_waiting_for_earlier_calls_is_divided_among_the_steps():
    for burst in (2, 32):
        (rank,) = metrics_of(queued(640, burst=burst), metadata=JAX).ranks
        lengths = rank.iterations.length
        assert lengths[rank.iterations.known] == pytest.approx(0.004, rel=1e-3)
        assert (np.diff(rank.steps.start) > 0).all()
        assert rank.seconds["compiled"] == pytest.approx(rank.loop, rel=1e-3)


@pytest.mark.parametrize("behind", [32, 16])  # steps in the queue: a script may call two functions a step
@pytest.mark.parametrize("every", [70, 140])
def test_what_is_left_in_the_queue_is_no_long_step(behind, every):
    """Once the queue is full each call waits for one step, and a read of results waits for all that are left in it."""
    rows, now = [], 1.0
    for step in range(2 * every):
        begin, place = now, step % every
        rows.append((event_names.COMPILED_STEP, "train_step", now, 0.0005, "algo-1-0", step))
        now += 0.0005
        waits = [(event_names.QUEUED, 0.1)] if place >= behind else []
        waits += [(event_names.RESULTS, 0.1 * behind)] if place == every - 1 else []
        for name, seconds in waits:
            rows.append((name, "train_step", now, seconds, "algo-1-0", step))
            now += seconds
        rows.append(("Step:ModeKeys.TRAIN", "Step:ModeKeys.TRAIN", begin, now - begin, "algo-1-0", step))
    (rank,) = metrics_of(rows, metadata=JAX).ranks
    lengths = rank.iterations.length
    assert lengths[rank.iterations.known] == pytest.approx(0.1005, rel=1e-3)
    assert (np.diff(rank.steps.start) > 0).all()
    assert verdict_of(rows, metadata=JAX).kind is Class.BALANCED


def test_a_queue_of_calls_is_healthy():
    assert verdict_of(queued(1920), metadata=JAX).kind is Class.BALANCED


def test_reading_the_loss_now_and_then_is_healthy():
    assert verdict_of(compiled(600, read=0.4), metadata=JAX).kind is Class.BALANCED


def test_work_beside_the_compiled_function_is_found():
    assert verdict_of(compiled(600, read=0.1, outside=0.01), metadata=JAX).kind is Class.SYNC_BOUND


@pytest.mark.parametrize("every", [1, 8])
def test_steps_without_phases_are_not_judged_by_their_results_alone(every):
    """The hook records phases of every nth step while it is short of time, but waiting for results always."""
    rows, now = [], 1.0
    for step in range(600):
        if step % 2 == 0:
            rows.append((event_names.DATALOADER_WAIT, "Loader", now, 0.008, "algo-1-0", step))
        begin = now = now + 0.008
        if step % 2 == 0:
            rows.append((event_names.COMPILED_STEP, "train_step", now, 0.0005, "algo-1-0", step))
        now += 0.0005
        if step % every == every - 1:
            rows.append((event_names.RESULTS, "block_until_ready", now, 0.001 * every, "algo-1-0", step))
            now += 0.001 * every
        rows.append(("Step:ModeKeys.TRAIN", "Step:ModeKeys.TRAIN", begin, now - begin, "algo-1-0", step))
    (rank,) = metrics_of(rows, metadata=JAX).ranks
    known = rank.iterations.known
    assert abs(int(known.sum()) - len(known) / 2) <= 8
    assert rank.iterations.seconds["outside"][known].max() < 0.0005
    assert verdict_of(rows, metadata=JAX).kind is Class.INPUT_BOUND


def test_waits_for_results_are_not_scaled_as_calls_that_were_recorded_for_some_steps_only():
    """Calls of the first steps compute at once, those of all others in the background."""
    rows, now = [], 1.0
    for step in range(800):
        begin = now
        call = 0.002 if step < 100 else 0.0001
        if step < 100 or step % 16 == 0:
            rows.append((event_names.COMPILED_STEP, "train_step", now, call, "algo-1-0", step))
        now += call
        if step >= 100:
            rows.append((event_names.RESULTS, "block_until_ready", now, 0.002, "algo-1-0", step))
            now += 0.002
        rows.append(("Step:ModeKeys.TRAIN", "Step:ModeKeys.TRAIN", begin, now - begin, "algo-1-0", step))
        now += 0.001
    (rank,) = metrics_of(rows, metadata=JAX).ranks
    assert rank.share("outside") == pytest.approx(1 / 3.1, rel=0.05)
    assert rank.share("compiled") == pytest.approx(2.1 / 3.1, rel=0.05)


@pytest.mark.parametrize(
    ("framework", "step_ms", "kind"),
    [
        ("jax", limits.TINY_STEP_S * 1e3 / 8 * 0.5, Class.HOST_BOUND), ("jax", limits.TINY_STEP_S * 1e3 / 8 * 2, Class.BALANCED),
        ("tensorflow", limits.TINY_STEP_S * 1e3 / 3 * 0.5, Class.HOST_BOUND), ("tensorflow", limits.TINY_STEP_S * 1e3 / 3 * 1.5, Class.BALANCED),
        ("keras", limits.TINY_STEP_S * 1e3 / 3 * 0.5, Class.HOST_BOUND), ("keras", limits.TINY_STEP_S * 1e3 / 3 * 1.5, Class.BALANCED),
    ],
)  # fmt: skip
def test_a_step_of_one_call_is_tiny_below_the_cost_of_a_call(framework, step_ms, kind):
    steps = round(20_000 / step_ms)
    assert verdict_of(compiled(steps, call=step_ms / 1e3), metadata=({"framework": framework},)).kind is kind


def test_compiled_steps_are_not_tiny_because_other_work_takes_most_of_the_loop():
    rows, now = [], 1.0
    for step in range(2000):
        rows.append((event_names.COMPILED_STEP, "train_step", now, 0.001, "algo-1-0", step))
        rows.append(("Step:ModeKeys.TRAIN", "Step:ModeKeys.TRAIN", now, 0.001, "algo-1-0", step))
        now += 0.04 if step % 20 == 19 else 0.0012
    verdict = verdict_of(rows, metadata=JAX)
    assert verdict.kind is not Class.HOST_BOUND
    assert Class.HOST_BOUND not in {one.kind for one in verdict.also}


def test_tiny_steps_cost_no_more_than_training_takes_of_a_loop_that_evaluates():
    rows, now = [], 1.0
    for step in range(2000):
        rows.append((event_names.COMPILED_STEP, "train_step", now, 0.0002, "algo-1-0", step))
        rows.append(("Step:ModeKeys.TRAIN", "Step:ModeKeys.TRAIN", now, 0.0002, "algo-1-0", step))
        now += 0.0002
        if step % 100 == 99:
            rows.append(("Step:ModeKeys.EVAL", "Step:ModeKeys.EVAL", now, 0.025, "algo-1-0", step))
            now += 0.025
    verdict = verdict_of(rows, metadata=JAX)
    (tiny,) = [one for one in verdict.also if one.kind is Class.HOST_BOUND]
    assert verdict.kind is Class.EVALUATION_BOUND
    assert tiny.share_of_time <= 0.45


def test_advice_for_jax_names_nothing_of_pytorch():
    assert "torch" not in verdict_of(compiled(600, read=0.4), metadata=JAX).main.next_step
    advice = verdict_of(compiled(2000, call=0.0001), metadata=JAX).main.next_step
    assert "jax.jit" in advice
    assert "torch" not in advice


@pytest.mark.parametrize(("times", "found"), [(2, False), (4, True)])
def test_a_part_batch_of_two_functions_is_no_habit(times, found):
    """Keras's last part batch compiled its two functions once more: a healthy loop had compiled again and again."""
    rows = compiled(300, call=0.01)
    args = {"compiler": "jax.jit", "again": True, "file": "train.py", "line": 3, "function": "f"}
    for step in (100, 101, 200, 201)[:times]:
        rows.append((event_names.COMPILE, "train_step", 1.0 + 0.011 * step, 0.4, "algo-1-0", step, args))
    case = Case(metrics_of(rows, metadata=JAX), {})
    assert (recompilation(case) is not None) is found


def test_recompilations_by_jax_get_advice_for_jax():
    rows = compiled(300, call=0.01, outside=0.02)
    args = {
        "compiler": "jax.jit",
        "again": True,
        "reason": "argument 2: f32[8] → f32[9]",
        "file": "train.py",
        "line": 3,
        "function": "f",
    }
    rows += [
        (event_names.COMPILE, "train_step", 1.01 + 0.03 * step, 0.019, "algo-1-0", step, args) for step in range(300)
    ]
    verdict = verdict_of(rows, metadata=JAX)
    assert verdict.kind is Class.RECOMPILATION
    assert "jax.jit compiles train_step again" in verdict.main.headline
    assert "static_argnums" in verdict.main.next_step


def test_a_function_that_is_called_on_the_host_is_named():
    rows = compiled(400, call=0.02)
    rows += [
        (event_names.CALLBACK, "augment.pure_callback", start, 0.01, "algo-1-0", step, {"calls": 1})
        for step, (_, _, start, *_) in enumerate([row for row in rows if row[0] == event_names.COMPILED_STEP])
    ]
    found = verdict_of(rows, metadata=JAX).main
    assert found.kind is Class.HOST_BOUND
    assert "The callback augment takes 50 % of the loop" in found.headline
    assert "jax.numpy" in found.next_step


def test_a_compilation_moves_with_its_step_when_waits_are_divided():
    """A static argument changes every 40 steps, whose results the script reads at other steps."""
    rows, now = [], 1.0
    for step in range(280):
        begin, compiling = now, 0.8 if step % 40 == 39 else 0.0
        if compiling:
            args = {"compiler": "jax.jit", "again": True, "file": "train.py", "line": 3, "function": "f"}
            rows.append((event_names.COMPILE, "train_step", now, compiling, "algo-1-0", -1, args))
        rows.append((event_names.COMPILED_STEP, "train_step", now, compiling + 0.0003, "algo-1-0", step))
        now += compiling + 0.0003
        if step % 50 == 49:
            rows.append((event_names.RESULTS, "copy to the host", now, 0.8, "algo-1-0", step))
            now += 0.8
        rows.append(("Step:ModeKeys.TRAIN", "Step:ModeKeys.TRAIN", begin, now - begin, "algo-1-0", step))
        now += 0.0002
    metrics = metrics_of(rows, metadata=JAX)
    assert totals_of(metrics).ranks[0].seconds["compiling again"] == pytest.approx(7 * 0.8, rel=0.01)
    assert verdict_of(rows, metadata=JAX).kind is Class.RECOMPILATION


def test_what_was_recorded_moves_with_a_sample_of_the_steps(monkeypatch):
    rows = compiled(6000, read=0.08)
    begins = [row[2] for row in rows if row[0].startswith("Step")]
    rows += [(event_names.LOG, "print", begins[step] + 0.00005, 0.00001, "algo-1-0", -1) for step in range(0, 6000, 13)]
    monkeypatch.setattr(step_sample, "MAX_STEPS", 4096)
    monkeypatch.setattr(step_fold, "MAX_STEPS", 4096)
    metrics = metrics_of(rows, metadata=JAX)
    (rank,) = metrics.ranks
    assert rank.judged is not None
    moments = np.asarray([one.start for one in metrics.recorded(Log).longest]) * 1e6
    at = np.searchsorted(rank.steps.start, moments, side="right") - 1
    steps = np.arange(0, 6000, 13)
    held = np.isin(steps, rank.judged.index)
    assert held.sum() > 100
    assert (rank.judged.index[at[held]] == steps[held]).all()
    assert (moments[held] <= rank.steps.end[at[held]]).all()


def predicting(*, every=5, batches=16, batch=0.0047, steps=400):
    """Return a loop whose callback predicts every few steps: Keras reads the results after the last step of prediction."""
    rows, now = [], 1.0
    for step in range(steps):
        begin = now
        rows.append((event_names.COMPILED_STEP, "train_step", now, 0.0005, "algo-1-0", step))
        rows.append((event_names.RESULTS, "metrics", now + 0.0005, 0.008, "algo-1-0", step))
        now += 0.0085
        rows.append(("Step:ModeKeys.TRAIN", "Step:ModeKeys.TRAIN", begin, 0.0085, "algo-1-0", step))
        if step % every:
            continue
        called = now = now + 0.0002
        for number in range(batches):
            name = "Step:ModeKeys.PREDICT"
            rows.append((name, name, now, 0.0001, "algo-1-0", step // every * batches + number))
            now += 0.0001
        rows.append(
            (event_names.RESULTS, "metrics", now, batch * batches, "algo-1-0", step // every * batches + number)
        )
        now += batch * batches + 0.002
        args = {"file": "/x/train.py", "line": 31, "function": "F1.on_train_batch_end", "calls": 1}
        rows.append((event_names.CALLBACK, "F1.on_train_batch_end", called, now - called, "algo-1-0", step, args))
        now += 0.0002
    return rows


def test_a_step_whose_results_are_read_after_it_ends_with_them():
    """It ended before it began, and most of the evaluation was code outside the phases."""
    (rank,) = metrics_of(predicting(), metadata=({"framework": "keras"},)).ranks
    assert (rank.steps.duration >= 0).all()
    assert rank.seconds["evaluation"] == pytest.approx(80 * 16 * 0.0048, rel=0.05)


def test_a_callback_that_predicts_leads_and_not_its_period():
    verdict = verdict_of(predicting(), metadata=({"framework": "keras"},))
    assert [verdict.kind, *(one.kind for one in verdict.also)] == [Class.SLOW_CALLBACK]
    assert verdict.main.where[0].line == 31
    assert verdict.main.gain.speedup.value == pytest.approx(1 / (1 - 0.64), rel=0.15)
