"""Long steps of a JAX loop in which numpy waits for what earlier steps compute."""

import attrs
import pytest

from sm_profiler.diagnosis.profile.case import Case
from sm_profiler.diagnosis.profile.verdict import decide
from sm_profiler.metrics.sample_fold import Place, Sampled, Samples
from sm_profiler.report import Class
from tests.support.reports import cause_found, gpu_samples, metrics_of, training

READ = "losses.append(np.asarray(loss))"


def context_of(line=READ, *, rows=None, framework="jax", leaf="", system=()):
    """Return a loop with a long step every 25 steps, whose samples lie in a line."""
    place = Place("train.py", 9, "main")
    found = [Sampled("algo-1-0", "outside", long, (place,), leaf, 0.9, 13) for long in (True, False)]
    metrics = metrics_of(rows or training(400, wait=0, every=25, stall=0.08), system)
    metrics = attrs.evolve(
        metrics, samples=Samples(tuple(found), {("train.py", 9): line}), metadata=({"framework": framework},)
    )
    return Case(metrics, {})


def test_steps_that_read_what_others_compute_are_no_stall():
    context = context_of()
    assert cause_found("PERIODIC_STALL", context) is None
    verdict = decide(context)
    assert (verdict.kind, verdict.main.confidence) == (Class.BALANCED, "low")
    assert "NumPy" in verdict.main.headline
    assert "jax.device_get" in verdict.main.next_step


def test_the_same_at_irregular_steps():
    rows = training(300, wait=0)
    for step in (40, 97, 111, 180, 203, 271):
        end = rows[-1][2] + rows[-1][3] + 0.5
        rows += training(1, wait=0, at=end, number=300 + step)
    assert cause_found("STEP_OUTLIERS", context_of(rows=rows)) is None
    assert cause_found("STEP_OUTLIERS", context_of("save(loss)", rows=rows)).kind is Class.STEP_OUTLIERS


@pytest.mark.parametrize(
    "more",
    [
        {"line": "write(table)"},
        {"line": "x = np.random.normal(size=9)"},
        {"framework": "pytorch"},
        {"leaf": "PIL.Image.open"},
        {"system": gpu_samples(80, 8)},
    ],
)
def test_other_lines_and_frameworks_stall(more):
    assert cause_found("PERIODIC_STALL", context_of(**more)).kind is Class.PERIODIC_STALL


def test_nothing_is_left_to_wait_for_after_a_recorded_wait():
    rows = training(400, wait=0, every=25, stall=0.08)
    steps = [row for row in rows if row[0].startswith("Step:")]
    rows += [
        ("sm_profiler/results", "block_until_ready", row[2] + row[3] - 0.001, 0.001, "algo-1-0", row[5])
        for row in steps
    ]
    assert cause_found("PERIODIC_STALL", context_of(rows=rows)).kind is Class.PERIODIC_STALL


def test_steps_that_only_launch_are_not_tiny():
    rows = training(2000, wait=0, forward=0.0001, backward=0, optimizer=0, outside=0.00001, every=25, stall=0.02)
    assert cause_found("HOST_BOUND", context_of("write(table)", rows=rows)).kind is Class.HOST_BOUND
    assert cause_found("HOST_BOUND", context_of(rows=rows)) is None
