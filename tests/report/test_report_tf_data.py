"""The slow stage of a tf.data pipeline, from made-up records."""

import pytest

from sm_profiler.diagnosis.profile.case import Case
from sm_profiler.formats import event_names
from sm_profiler.report import Class
from tests.support.reports import cause_found, metrics_of, training, verdict_of

SLOW = {
    "stage": "map(decode)", "us": 3700.0, "batch_us": 118_400.0, "parallelism": 1.0, "parallel": False,
    "file": "/code/train.py", "line": 12, "function": "decode",
}  # fmt: skip
BATCH = {"stage": "batch", "us": 40.0, "batch_us": 40.0, "parallelism": 1.0, "parallel": False}


def waiting(*stages, batches=300, **pipeline):
    """Return a loop that waits for batches, with a record about its pipeline."""
    args = {"batches": batches, "prefetch": False, "cache": False, "stages": list(stages)} | pipeline
    rows = training(300, wait=0.05)
    return [*rows, (event_names.DATA_STAGES, "tf.data", 5.0, 0.0, "algo-1-0", 50, args)]


def test_names_the_slow_stage_and_its_line():
    verdict = verdict_of(waiting(BATCH, SLOW))
    assert verdict.kind is Class.INPUT_BOUND
    assert "map(decode) takes 3.7 ms for an element, one at a time" in verdict.main.headline
    assert "num_parallel_calls=tf.data.AUTOTUNE" in verdict.main.next_step
    assert ".prefetch(tf.data.AUTOTUNE)" in verdict.main.next_step
    assert ".cache()" in verdict.main.next_step
    where = verdict.main.where[0]
    assert (where.file, where.line, where.function) == ("/code/train.py", 12, "decode")


def test_a_parallel_stage_needs_to_be_cheaper():
    advice = verdict_of(waiting(SLOW | {"parallel": True, "parallelism": 4.0}, prefetch=True)).main.next_step
    assert "runs on 4 threads already" in advice
    assert "prefetch" not in advice


def test_a_generator_runs_python():
    stage = SLOW | {"stage": "from_generator(rows)", "function": "rows"}
    assert "one element at a time" in verdict_of(waiting(stage)).main.next_step


def test_no_stage_dominates():
    evidence = verdict_of(waiting(SLOW, SLOW | {"stage": "map(other)"}, BATCH)).main.evidence
    assert "slowest stage of the input pipeline" not in {one.metric for one in evidence}


def test_to_prefetch_is_no_work():
    assert "prefetch takes" not in verdict_of(waiting(SLOW | {"stage": "prefetch", "us": 22.0})).main.headline


@pytest.mark.parametrize(("made_us", "found"), [(1500.0, True), (40.0, False)])
def test_a_small_wait_counts_if_the_pipeline_takes_as_long_to_make_a_batch(made_us, found):
    args = {"batches": 300, "stages": [BATCH, SLOW | {"us": made_us, "batch_us": made_us}]}
    rows = training(300, wait=0.0009, forward=0.001, backward=0.0015, optimizer=0.0002)
    rows.append((event_names.DATA_STAGES, "tf.data", 1.0, 0.0, "algo-1-0", 50, args))
    assert (cause_found("INPUT_BOUND", Case(metrics_of(rows), {})) is not None) is found


def test_the_record_with_the_most_batches_counts():
    rows = waiting(SLOW)
    args = {"batches": 2, "stages": [SLOW | {"stage": "shuffle"}]}
    rows.append((event_names.DATA_STAGES, "tf.data", 6.0, 0.0, "algo-1-0", 60, args))
    assert "map(decode)" in verdict_of(rows).main.headline


def test_a_record_of_all_stages_counts_more_than_one_with_more_batches():
    rows = waiting(SLOW, partial=False)
    args = {"batches": 900, "partial": True, "stages": [SLOW | {"stage": "flat_map"}]}
    rows.append((event_names.DATA_STAGES, "tf.data", 6.0, 0.0, "algo-1-0", 60, args))
    assert "map(decode)" in verdict_of(rows).main.headline


GENERATOR = {"stage": "from_generator(rows)", "file": "/code/train.py", "line": 7, "function": "rows"}


def test_a_stage_that_tensorflow_forgot_is_named_if_the_others_do_not_explain_the_wait():
    verdict = verdict_of(waiting(BATCH, SLOW | {"batch_us": 200.0}, partial=True, forgotten=GENERATOR))
    assert "most of it in from_generator(rows)" in verdict.main.headline
    assert "one element at a time" in verdict.main.next_step
    assert (verdict.main.where[0].line, verdict.main.where[0].function) == (7, "rows")


def test_a_measured_stage_that_explains_the_wait_is_named():
    verdict = verdict_of(waiting(BATCH, SLOW, partial=True, forgotten=GENERATOR))
    assert "map(decode)" in verdict.main.headline


@pytest.mark.parametrize("lost", ["x", {}, {"stage": 3, "file": 1}])
def test_a_damaged_forgotten_stage_does_no_harm(lost):
    assert verdict_of(waiting(BATCH, partial=True, forgotten=lost)).kind is Class.INPUT_BOUND


@pytest.mark.parametrize(
    "stages", [None, "x", [1, {}], [{"stage": 3, "batch_us": "y"}], [{"batch_us": float("inf")}], [{"batch_us": 5, "line": []}]]
)  # fmt: skip
def test_damaged_records_do_no_harm(stages):
    args = {"batches": 5, "stages": stages}
    rows = [*training(300, wait=0.05), (event_names.DATA_STAGES, "tf.data", 5.0, 0.0, "algo-1-0", 50, args)]
    assert verdict_of(rows).kind is Class.INPUT_BOUND
