"""Each class of verdict, from rows just above and just below its thresholds."""

import json
import re

import attrs
import numpy as np
import pytest

from sm_profiler.diagnosis.confidence import MAY_BE_NEEDED
from sm_profiler.diagnosis.model import Gain, Interval, Location
from sm_profiler.diagnosis.profile.case import Case, Found
from sm_profiler.diagnosis.profile.job import fit_growth
from sm_profiler.diagnosis.profile.verdict import decide
from sm_profiler.formats import event_names
from sm_profiler.formatting import percent
from sm_profiler.metrics.sample_fold import Samples
from sm_profiler.metrics.stalls import find_period
from sm_profiler.metrics.step_fold import LoaderSettings
from sm_profiler.metrics.system_fold import Usage
from sm_profiler.render.page import render_html
from sm_profiler.render.sections import framework
from sm_profiler.report import Class, Finding, terminal_summary
from sm_profiler.report.report_json import to_json
from tests.support.reports import (
    START_S,
    cause_found,
    gpu_samples,
    metrics_of,
    ranked,
    report_from,
    sampled,
    training,
    verdict_of,
)


def test_computing_loops_are_balanced():
    verdict = verdict_of(training(200))
    assert verdict.kind is Class.BALANCED
    assert verdict.main.confidence == "medium"  # what the model could leave out is not known
    assert verdict.main.share_of_time == 0


def test_finds_waiting_for_data():
    verdict = verdict_of(training(200, wait=0.02))
    assert verdict.kind is Class.INPUT_BOUND
    assert verdict.main.confidence == "high"
    assert verdict.main.share_of_time == pytest.approx(0.02 / 0.0292, abs=0.01)


def short_steps(workers, wait):
    metrics = metrics_of(training(300, wait=wait, forward=0.001, backward=0.0015, optimizer=0.0002))
    return attrs.evolve(metrics, loader=LoaderSettings(workers, 2))


@pytest.mark.parametrize(("workers", "wait", "found"), [(0, 0.0008, True), (2, 0.0008, True), (-1, 0.0008, False), (2, 0.00049, False)])  # fmt: skip
def test_what_it_takes_to_hand_over_a_batch_is_no_slow_input(workers, wait, found):
    assert (cause_found("INPUT_BOUND", Case(short_steps(workers, wait), {})) is not None) is found


def test_a_third_of_short_steps_spent_making_batches_is_the_input():
    main = decide(Case(short_steps(0, 0.0013), {})).main
    assert main.kind is Class.INPUT_BOUND
    assert "sample by sample" in main.headline
    assert "Make a batch at once" in main.next_step


def test_why_short_waits_are_not_named_is_true_without_a_gpu():
    main = decide(Case(short_steps(-1, 0.0008), {})).main
    assert main.kind is Class.BALANCED
    assert "GPU" not in main.headline
    assert "800 µs for a batch is about what it takes to hand over" in main.headline


def test_ignores_short_waits():
    assert verdict_of(training(200, wait=0.0012)).kind is Class.BALANCED


def test_finds_time_outside_the_phases():
    verdict = verdict_of(training(200, outside=0.008))
    assert verdict.kind is Class.SYNC_BOUND
    assert verdict.main.share_of_time == pytest.approx(0.008 / 0.018, abs=0.01)


def test_finds_tiny_steps():
    verdict = verdict_of(training(500, wait=0.0001, forward=0.0002, backward=0.0003, optimizer=0.0001, outside=0.0001))
    assert verdict.kind is Class.HOST_BOUND


def test_finds_a_slow_optimizer():
    assert verdict_of(training(200, optimizer=0.02)).kind is Class.OPTIMIZER_BOUND


@pytest.mark.parametrize(
    ("leaf", "advised"),
    [
        ("adam._single_tensor_adam", "Create the optimizer with fused=True"),
        ("rprop._single_tensor_rprop", "Create the optimizer with foreach=True"),
        ("adamw._multi_tensor_adamw", "Create the optimizer with fused=True"),
        ("nadam._multi_tensor_nadam", "in a few operators already"),
        ("adam._fused_adam", "in a few operators already"),
        ("_functional.sparse_adam", "neither a fused nor a foreach implementation"),
        ("_muon._single_tensor_muon", "neither a fused nor a foreach implementation"),
    ],
)
def test_an_optimizer_is_not_advised_what_it_does_not_accept(leaf, advised):
    seen = sampled(("optimizer", False, 4.0, 12, "train.py", "main", f"torch.optim.{leaf}"))
    main = verdict_of([*training(200, optimizer=0.02), seen]).main
    assert main.kind is Class.OPTIMIZER_BOUND
    assert main.next_step.count("=True") == advised.count("=True")
    assert advised in main.next_step


def test_what_the_scripts_own_optimizer_computes_may_be_its_algorithm():
    """Shampoo's eigenvectors were called a slow optimizer with high confidence, and fused=True was advised."""
    own = sampled(("optimizer", False, 4.0, 12, "train.py", "step", ""))
    main = verdict_of([*training(200, optimizer=0.02), own]).main
    assert (main.kind, main.confidence) == (Class.OPTIMIZER_BOUND, "medium")
    assert "code that is not torch's" in main.next_step
    assert "=True" not in main.next_step


def test_finds_periodic_stalls_and_their_cost():
    verdict = verdict_of(training(400, every=40, stall=0.2))
    assert verdict.kind is Class.PERIODIC_STALL
    assert verdict.main.headline.startswith("Every 40 steps")
    assert "outside the phases" in verdict.main.headline
    # nine stalls count, because the first is in the warm-up; all ten are time of the loop
    assert verdict.main.share_of_time == pytest.approx(9 * 0.2 / (10 * 0.2 + 399 * 0.0102), abs=0.01)


@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer"])
def test_what_an_algorithm_computes_now_and_then_is_no_stall(phase):
    """The eigenvectors of Shampoo's preconditioners, at each tenth step, were one."""
    rows, now = [], 1.0
    for number in range(300):
        lengths = {"forward": 0.003, "backward": 0.005, "optimizer": 0.001}
        lengths[phase] += 0.03 * (number % 10 == 0)
        rows += training(1, at=now, number=number, **lengths)
        now += 0.0012 + sum(lengths.values())
    assert metrics_of(rows).ranks[0].stalls.period == 10
    assert verdict_of(rows).kind is Class.PERIODIC_STALL  # as far as is known
    seen = sampled((phase, True, 0.9, 12, "train.py", "step", "torch.linalg.eigh"))
    assert verdict_of([*rows, seen]).kind is Class.BALANCED


@pytest.mark.parametrize(("seconds", "restarts"), [(0.07, True), (0.02, False)])
def test_workers_that_start_again_with_each_epoch_are_named(seconds, restarts):
    rows = training(400, every=40, stall=0.2)
    for row in [row for row in rows if row[0] == "Optimizer" and row[5] % 40 == 0]:
        stopped = row[2] + row[3] + 0.01
        for change, start in (("stop", stopped), ("start", stopped + seconds)):
            rows.append((event_names.LOADER_WORKERS, change, start, seconds, row[4], -1, {"num_workers": 2}))
    verdict = verdict_of(rows)
    assert verdict.kind is Class.PERIODIC_STALL
    assert ("persistent_workers" in verdict.main.next_step) is restarts
    assert ("starts its workers again" in verdict.main.headline) is restarts


def test_steps_with_a_period_need_not_be_twice_as_long():
    main = verdict_of(training(400, every=5, stall=0.006)).main
    assert (main.kind, main.share_of_time) == (Class.PERIODIC_STALL, pytest.approx(0.105, abs=0.01))
    assert "Every 5 steps" in main.headline


def test_padding_beyond_the_longest_sequence_of_a_batch_is_saved():
    found = {
        name: report_from(training(200), metadata=({"padding": whole, "padding_of_all": beyond},)).verdict.main
        for name, (whole, beyond) in {"max_length": (0.8, 0.7), "mixed": (0.8, 0.0), "longest": (0.4, 0.0)}.items()
    }
    main = found["max_length"]
    assert (main.kind, main.confidence) == (Class.PADDING_WASTE, "high")
    assert "DataCollatorWithPadding" in main.next_step
    assert 1.5 < main.gain.speedup.low < 2.3 < main.gain.speedup.high
    assert found["mixed"].kind is Class.PADDING_WASTE
    assert found["mixed"].confidence != "high"
    assert "similar length" in found["mixed"].next_step
    shown = {
        one.metric: one.value for one in found["mixed"].evidence
    }  # that nothing was beyond it read as a contradiction
    assert shown == {"tokens that are padding": 0.8, "tokens of padding up to the longest sequence of their batch": 0.8}
    assert found["longest"].kind is Class.BALANCED


@pytest.mark.parametrize(("source", "found"), [("trainer.train()", []), ("for batch in loader:", [24])])
def test_a_call_that_trains_makes_no_batches(source, found):
    waits = sampled(("wait", False, 2.0, 24))
    waits[-1]["lines"] = [source]
    rows = [*training(200), waits]
    where = report_from(rows, metadata=({"padding": 0.8, "padding_of_all": 0.7},)).verdict.main.where
    assert [line.line for line in where] == found


@pytest.mark.parametrize("line", [31, "31", None])
def test_padding_names_the_function_that_makes_batches_if_no_sample_met_it(line):
    collate = {"file": "/job/train.py", "line": line, "function": "pad"}
    record = {"padding": 0.8, "padding_of_all": 0.7, "collate": collate}
    where = report_from(training(200), metadata=(record,)).verdict.main.where
    assert where == ((Location("/job/train.py", 31, "pad", share=0.0),) if line == 31 else ())


@pytest.mark.parametrize(
    ("dtype", "kind"), [("torch.float64", Class.DOUBLE_PRECISION), ("torch.float32", Class.BALANCED)]
)
def test_a_model_of_64_bit_numbers_is_not_healthy(dtype, kind):
    """Data that numpy had made, and a model that was made to fit it, took 2.4 times as long as with float32."""
    main = report_from(training(200), metadata=({"dtype": dtype},)).verdict.main
    assert main.kind is kind
    if kind is Class.DOUBLE_PRECISION:
        assert main.confidence == "medium"
        assert main.gain.speedup.low < 2.4 < main.gain.speedup.high


def test_the_type_of_a_models_numbers_is_known_however_steps_vary():
    """Steps that became a third longer came before it."""
    rows, now = [], 1.0
    for step in range(200):
        rows += training(1, forward=0.02 if step < 100 else 0.035, at=now, number=step)
        now = rows[-1][2] + rows[-1][3] + 0.0002
    verdict = report_from(rows, metadata=({"dtype": "torch.float64"},)).verdict
    assert (verdict.kind, verdict.main.confidence) == (Class.DOUBLE_PRECISION, "medium")


@pytest.mark.parametrize(("threads", "said"), [(1, True), (4, False), (8, False)])
def test_a_healthy_training_on_some_of_the_cores_names_the_others(threads, said):
    """One thread on two cores was healthy, and the other thread made it a fifth faster."""
    args = {"threads": 9, "library_threads": threads, "cores": 4.0}
    main = verdict_of([*training(200), (event_names.THREADS, "threads", 2.0, 1.0, "algo-1-0", -1, args)]).main
    assert main.kind is Class.BALANCED
    assert ("torch computes with 1 thread of 4 cores" in main.next_step) is said


def test_a_second_cause_is_judged_by_what_the_first_leaves():
    """Waits of 12 % of the loop are 25 % of it without the other code."""
    verdict = verdict_of(training(400, wait=0.0025, outside=0.011))
    assert [one.kind for one in (verdict.main, *verdict.also)] == [Class.SYNC_BOUND, Class.INPUT_BOUND]
    assert verdict_of(training(400, wait=0.0012)).kind is Class.BALANCED


def test_long_steps_beside_the_period_are_noise():
    """A busy machine makes some more steps long; they are no part of what happens every 40 steps."""
    rows = stretched(training(400, every=40, stall=0.2), {25, 77, 154, 233, 309}, lambda _: "Forward", 0.06)
    rank = metrics_of(rows).ranks[0]
    assert (rank.stalls.period, rank.stalls.count) == (40, 9)
    assert rank.stalls.excess == pytest.approx(9 * 0.2, rel=0.02)


def test_finds_long_steps_without_a_period():
    verdict = verdict_of(stretched(training(400), {31, 58, 140, 203, 371}, lambda _: "Forward", 0.4))
    assert verdict.kind is Class.STEP_OUTLIERS
    assert "5 of 399" in verdict.main.headline
    assert "forward pass" in verdict.main.headline


def test_the_numbers_of_time_outside_the_model_are_of_the_same_step():
    """The share was that of the median step and the milliseconds those of the mean: 85 %, "33.1 ms of 34 ms"."""
    rows, now, draw = [], 1.0, np.random.default_rng(7)
    for step in range(300):
        outside = 0.005 if draw.random() < 0.6 else draw.uniform(0.03, 0.09)  # too frequent for exceptions
        rows += training(1, at=now, number=step, outside=outside)
        now += 0.01 + outside
    headline = verdict_of(rows).main.headline
    share, spent, length = map(
        float, re.match(r"([\d.]+) % of each .*: ([\d.]+) ms of a typical step of ([\d.]+) ms", headline).groups()
    )
    assert spent / length == pytest.approx(share / 100, abs=0.01)


def test_a_single_long_step_has_no_intervals():
    verdict = verdict_of(stretched(training(200), {31}, lambda _: "Forward", 0.9))
    assert verdict.kind is Class.STEP_OUTLIERS
    assert "1 of 199 steps takes 9" in verdict.main.headline
    assert "forward pass; it costs" in verdict.main.headline


@pytest.mark.parametrize("early", [0.0, 3.0])
def test_long_steps_between_epochs_have_the_input_to_start_again(early):
    rows = stretched(training(600), {149, 320, 530}, lambda _: "Forward", 0.6)
    steps = [row for row in rows if row[0].startswith("Step") and row[3] > 0.5]
    for number, (_, _, start, length, node, step) in enumerate(steps):
        end = start + length / 2 - early
        rows.append((event_names.EPOCH, f"epoch {number}", 1.0, end - 1.0, node, step, {"epoch": number}))
    verdict = verdict_of(rows)
    assert verdict.kind is Class.STEP_OUTLIERS
    assert ("between two epochs" in verdict.main.headline) is not bool(early)
    assert ("steps_per_epoch" in verdict.main.next_step) is not bool(early)


def test_workers_that_start_after_each_evaluation_are_to_be_kept():
    rows, now = [], 1.0
    for epoch in range(20):
        first = 0.3 if epoch else 0.001
        rows += training(1, wait=first, at=now, number=8 * epoch)
        rows += training(7, at=now + first + 0.0092, number=8 * epoch + 1)
        now += first + 8 * 0.0102
        rows += training(3, at=now, mode="EVAL", backward=0, optimizer=0, number=3 * epoch)
        now += 3 * 0.0042
    metrics = attrs.evolve(metrics_of(rows), loader=LoaderSettings(2, 0))
    finding = cause_found("INPUT_BOUND", Case(metrics, {}))
    assert "for the first batch after an evaluation, while 2 workers start" in finding.headline
    assert "persistent_workers=True" in finding.next_step


def test_bursts_of_loader_workers_are_input_not_stalls():
    rows, now = [], 1.0
    for step in range(200):
        wait = 0.08 if step % 4 == 0 else 0.0001
        rows += training(1, wait=wait, at=now, number=step)
        now += wait + 0.0092
    metrics = metrics_of(rows)
    without = decide(Case(metrics, {}))
    with_workers = decide(Case(attrs.evolve(metrics, loader=LoaderSettings(4, 0)), {}))
    assert with_workers.kind is Class.INPUT_BOUND
    assert [finding.kind for finding in with_workers.also] == []
    assert without.kind is Class.INPUT_BOUND  # a wait in each fourth step is how this loop works


def test_garbage_collection_leads_over_its_symptoms():
    rows = training(200, outside=0.01)
    rows += [("GC", "GC", row[2] + row[3] + 0.001, 0.008, row[4], -1) for row in rows if row[0].startswith("Step")]
    verdict = verdict_of(rows)
    assert verdict.kind is Class.GC_BOUND


def test_collections_while_functions_are_compiled_are_no_finding():
    rows = training(200)
    first = next(row for row in rows if row[0] == "Forward" and row[5] == 9)
    rows += [("GC", "GC", first[2] + 0.001 * one, 0.001, "algo-1-0", -1) for one in range(2)]
    slow = [(*row[:3], row[3] + (1.0 if row is first else 0), *row[4:]) if row[0] == "Forward" else row for row in rows]
    start = first[2]
    rows = [(*row[:2], row[2] + (1.0 if row[2] > start + 0.003 else 0), *row[3:]) for row in slow]
    rows = [(*row[:3], 1.009, *row[4:]) if row[0].startswith("Step") and row[5] == 9 else row for row in rows]
    rows += [("GC", "GC", start + 0.1 + 0.1 * one, 0.08, "algo-1-0", -1) for one in range(8)]
    compiled = (event_names.COMPILE, "train_step", start, 1.0, "algo-1-0", 0, {"again": False})
    assert verdict_of(rows).kind is Class.GC_BOUND
    verdict = verdict_of([*rows, compiled])
    assert Class.GC_BOUND not in {verdict.kind, *(one.kind for one in verdict.also)}


def test_collections_lead_only_if_they_cost_more_than_what_remains_of_the_others():
    rows = training(200, wait=0.03)
    rows += [
        ("GC", "GC", row[2] + row[3] - 0.004, 0.0035, row[4], -1) for row in rows if row[0].startswith("DataLoaderW")
    ]
    verdict = verdict_of(rows)
    assert verdict.kind is Class.INPUT_BOUND
    assert [finding.kind for finding in verdict.also] == [Class.GC_BOUND]
    text = terminal_summary(report_from(rows), width=100)
    assert "Also, with the gain of a repair: GC_BOUND 7 to 11 % of the loop (medium)" in text


def test_other_findings_state_what_their_repair_gains_and_nothing_else():
    """Their share of the time was shown, which may be far more than what a repair saves, or than what the verdict costs."""
    gain = Gain.of_share(Interval(0.2, 0.3, 0.5), 0.01, 100.0)
    small = Gain.of_share(Interval(0.02, 0.03, 0.04), 0.01, 100.0)
    start = Gain.of_share(Interval(0.02, 0.03, 0.04), 0.01, 100.0, of="job")
    also = (
        Finding(Class.DOUBLE_PRECISION, "", share_of_time=0.83, gain=gain, confidence="low"),
        Finding(Class.GC_BOUND, "", share_of_time=0.09, gain=small, confidence="high"),
        Finding(Class.INITIALIZATION_BOUND, "", share_of_time=0.5, of="job", gain=start, confidence="high"),
        Finding(Class.MEMORY_GROWTH, "", share_of_time=0.7, confidence="high"),
    )
    report = report_from(training(200))
    text = terminal_summary(attrs.evolve(report, verdict=attrs.evolve(report.verdict, also=also)), width=100)
    assert " ".join(text.split()).endswith(
        "Also, with the gain of a repair: DOUBLE_PRECISION 1.2 to 2.0 times as fast (low), GC_BOUND 2 to 4 % of the loop (high), "
        "INITIALIZATION_BOUND 2 to 4 s of the job (high), MEMORY_GROWTH (high)"
    )


def test_long_steps_that_collections_cause_are_no_finding_of_their_own():
    rows = training(400, every=40, stall=0.2)
    long = [row for row in rows if row[0].startswith("Step") and row[5] % 40 == 0]
    verdict = verdict_of([*rows, *(("GC", "GC", row[2] + row[3] + 0.001, 0.198, row[4], -1) for row in long)])
    assert (verdict.kind, verdict.also) == (Class.GC_BOUND, ())


def test_a_collection_before_the_first_step_costs_the_loop_nothing():
    (rank,) = metrics_of([("GC", "GC", 0.1, 0.8, "algo-1-0", -1), *training(100)]).ranks
    assert rank.gc == 0
    assert rank.loop == pytest.approx(100 * 0.0102, rel=0.01)


def test_without_steps_the_surer_of_two_findings_leads():
    sure, guess = (
        Finding(kind, "", (), "", 0.3, confidence=confidence)
        for kind, confidence in ((Class.SYNC_BOUND, "high"), (Class.HOST_BOUND, "low"))
    )
    order = ranked([guess, sure], Case(metrics_of([]), {}))
    assert [one.finding.kind for one in order] == [Class.SYNC_BOUND, Class.HOST_BOUND]


def test_a_verdict_with_a_close_second_is_not_certain():
    verdict = verdict_of(training(200, wait=0.02, outside=0.022))
    assert {verdict.kind, verdict.also[0].kind} == {Class.INPUT_BOUND, Class.SYNC_BOUND}
    assert verdict.main.confidence == "medium"
    assert verdict_of(training(200, wait=0.02, outside=0.008)).main.confidence == "high"


def test_chance_above_the_floor_is_no_certainty():
    few, many = (Case(metrics_of(training(steps)), {}) for steps in (60, 200))

    def confidence(case, certain, error):
        return case.confidence(Found("", {}, (), 0.3, error=error), certain)

    assert confidence(few, 0.06, 0.02) == "low"
    assert confidence(few, 0.08, 0.02) == "medium"
    assert confidence(few, 0.30, 0.02) == "medium"  # in 60 steps
    assert confidence(many, 0.30, 0.02) == "high"
    assert confidence(many, 0.30, 0.1) == "medium"


def test_healthy_is_not_certain_close_to_a_finding_or_with_unexplained_time():
    assert verdict_of(training(200, wait=0.0014)).main.confidence == "medium"  # 13 %, waits count from 15 %
    both = verdict_of(training(200, wait=0.0014, outside=0.0022))
    assert both.kind is Class.BALANCED
    assert both.main.confidence == "medium"
    assert "29 %" in both.main.headline


def test_healthy_accelerators_are_not_balanced_too():
    verdict = verdict_of(training(400), gpu_samples(95, 5))
    assert (verdict.kind, verdict.also) == (Class.COMPUTE_BOUND, ())


def with_operators(rows, operators, fixed_us):
    return [
        *rows,
        ("sm_profiler/operators", "operators", 1.5, 0.0, "algo-1-0", 3, {"operators": operators, "fixed_us": fixed_us}),
    ]


def test_launches_are_judged_by_their_share_of_a_step_at_any_speed():
    slow = training(300, wait=0.0001, forward=0.0015, backward=0.002, optimizer=0.0005, outside=0.0001)
    verdict = verdict_of(with_operators(slow, 600, 5.0))
    assert verdict.kind is Class.HOST_BOUND
    assert verdict.main.share_of_time == pytest.approx(600 * 5e-6 / 0.0042, rel=0.02)
    assert verdict_of(with_operators(slow, 100, 5.0)).kind is Class.BALANCED
    fast = training(500, wait=0.0001, forward=0.0002, backward=0.0003, optimizer=0.0001, outside=0.0001)
    assert verdict_of(with_operators(fast, 30, 2.0)).kind is Class.BALANCED  # small, but it computes


def test_tiny_steps_of_which_the_loops_python_takes_much_are_limited_by_the_host():
    fast = training(500, wait=0, forward=0.0001, backward=0.0002, optimizer=0.0001, outside=0.0003)
    verdict = verdict_of(with_operators(fast, 20, 2.5))
    assert (verdict.kind, verdict.main.confidence) == (Class.HOST_BOUND, "medium")
    assert verdict.main.share_of_time == pytest.approx((0.0003 + 20 * 2.5e-6) / 0.0007, rel=0.03)
    slow = training(500, wait=0, forward=0.001, backward=0.002, optimizer=0.001, outside=0.0003)
    assert verdict_of(with_operators(slow, 20, 2.5)).kind is Class.BALANCED


def test_loops_that_act_and_learn_in_turns_have_steps_to_judge():
    """Reinforcement learning: the model acts without gradients before each update."""
    rows, now = [], 1.0
    for step in range(200):
        rows += training(1, wait=0, forward=0.001, backward=0, optimizer=0, mode="EVAL", at=now, number=step)
        rows += training(1, wait=0, outside=0, at=now + 0.02, number=step)
        now += 0.0291
    verdict = verdict_of(rows)
    assert verdict.kind is Class.SYNC_BOUND
    assert verdict.main.share_of_time == pytest.approx(0.019 / 0.028, abs=0.03)


def test_what_follows_an_evaluation_is_no_usual_step_if_most_follow_another_one():
    rows = training(50) + training(2, at=1.51, mode="EVAL", backward=0, optimizer=0) + training(50, at=9, number=50)
    assert len(metrics_of(rows).ranks[0].iterations) == 98


def test_launches_are_compared_with_steps_that_did_not_wait_for_a_core():
    busy = training(300, wait=0.0001, forward=0.015, backward=0.02, optimizer=0.005, outside=0.0001)
    row = ("sm_profiler/operators", "operators", 1.5, 0.0, "algo-1-0", 3)
    counted = {"operators": 150, "fixed_us": 9.0}
    assert verdict_of([*busy, (*row, counted)]).kind is Class.BALANCED
    assert verdict_of([*busy, (*row, {**counted, "step_us": 3200.0})]).kind is Class.HOST_BOUND


def test_short_steps_without_counted_operators_are_never_certain():
    assert verdict_of(training(300, forward=0.0015, backward=0.002)).main.confidence == "medium"
    tiny = verdict_of(training(500, wait=0.0001, forward=0.0002, backward=0.0003, optimizer=0.0001, outside=0.0001))
    assert (tiny.kind, tiny.main.confidence) == (Class.HOST_BOUND, "medium")


def test_finds_long_evaluation():
    rows = training(100) + training(300, at=2.5, forward=0.008, backward=0, optimizer=0, mode="EVAL")
    assert verdict_of(rows).kind is Class.EVALUATION_BOUND


def evaluating(steps, metadata=()):
    """Return the verdict on 300 training steps and some of evaluation."""
    rows = training(300) + training(steps, at=4.1, forward=0.008, backward=0, optimizer=0, mode="EVAL")
    return verdict_of(rows, metadata=metadata).main


def test_a_healthy_loop_that_evaluates_much_does_not_need_nothing():
    """It needed no repair, with high confidence, where evaluating rarely made it 1.24 times as fast."""
    main = evaluating(62)
    assert (main.kind, main.confidence) == (Class.BALANCED, "medium")
    assert "% and evaluates 16 %" in main.headline
    assert "Evaluating half as often saves 8 % of the loop." in main.next_step
    assert "Nothing needs repair" not in main.next_step
    assert "validation_freq" in evaluating(62, ({"framework": "keras"},)).next_step
    assert "Nothing needs repair" in evaluating(20).next_step


def test_compiling_for_evaluation_is_no_evaluation():
    def loop(compiling):
        rows = training(100) + training(300, at=2.5, forward=0.004, backward=0, optimizer=0, mode="EVAL")
        first = next(row for row in rows if row[1].endswith("EVAL"))
        return [*rows, (event_names.COMPILE, "test_step", first[2], compiling, "algo-1-0", 0, {"again": False})]

    short = verdict_of(loop(0.2))
    assert short.kind is Class.EVALUATION_BOUND
    assert "without 200 ms of compiling for it" in short.main.headline
    assert verdict_of(loop(1.6)).kind is not Class.EVALUATION_BOUND


def test_initialization_counts_beyond_its_allowance():
    late = training(300, at=20.0)
    samples = [(tick / 2, 30.0, "algo-1", "cpu", "cpu0", "CPUUtilization") for tick in range(1, 48)]
    assert verdict_of(late, samples).kind is Class.INITIALIZATION_BOUND
    early = training(300, at=4.0)
    assert verdict_of(early, samples[:16]).kind is Class.BALANCED


@pytest.mark.parametrize("slow", ["wait", "forward"])
def test_the_straggler_is_the_rank_that_waits_least(slow):
    culprit = {"wait": 0.001, "forward": 0.003, "backward": 0.005} | {slow: 0.013}
    victim = {"wait": 0.001, "forward": 0.003, "backward": 0.005}
    victim["backward"] += culprit[slow] - victim[slow]
    rows = training(200, node="algo-2-1", **culprit)
    for node in ("algo-1-0", "algo-1-2", "algo-2-3"):
        rows += training(200, node=node, **victim)
    verdict = verdict_of(rows)
    assert verdict.kind is Class.STRAGGLER
    assert verdict.main.evidence[0].where == "algo-2-1"
    assert ("waiting for data" if slow == "wait" else "forward pass") in verdict.main.headline


def test_long_steps_with_more_work_wait_for_a_core_more_often():
    """All steps wait for half of their time, as on a machine that others use."""
    metrics = metrics_of(stretched(training(400), {31, 58, 140, 203, 371}, lambda _: "Forward", 0.4))
    waited = (0.5 * 395 * 0.0102, 0.5 * 5 * 0.4102)
    found = decide(Case(attrs.evolve(metrics, samples=Samples(waited={"algo-1-0": waited})), {}))
    assert found.kind is Class.STEP_OUTLIERS


def test_a_straggler_that_waits_for_a_core_is_a_guess():
    rows = training(200, node="algo-1-0", forward=0.013) + training(200, node="algo-1-1", backward=0.015)
    metrics = metrics_of(rows)
    ticks = np.linspace(metrics.ranks[0].start, metrics.ranks[0].end, 5)

    def usage(waiting):
        return Usage(ticks, ticks.copy(), np.zeros(5), (ticks - ticks[0]) * waiting)

    def found(waiting):
        used = {"algo-1-0": usage(waiting), "algo-1-1": usage(0.02)}
        return cause_found("STRAGGLER", Case(attrs.evolve(metrics, usage=used), {}))

    assert found(0.02).confidence == "high"
    assert found(0.5).confidence == "low"
    assert any(one.metric == "time waiting for a core" for one in found(0.5).evidence)


def test_independent_ranks_have_no_straggler():
    rows = training(200, node="algo-1-0") + training(120, node="algo-1-1", forward=0.02)
    assert verdict_of(rows).kind is Class.BALANCED


def test_busy_gpus_are_compute_bound_and_idle_ones_host_bound():
    assert verdict_of(training(400), gpu_samples(95, 5)).kind is Class.COMPUTE_BOUND
    assert verdict_of(training(400), gpu_samples(20, 5)).kind is Class.HOST_BOUND


def test_finds_an_unused_gpu():
    verdict = verdict_of(training(400), gpu_samples(0, 5))
    assert "never used" in verdict.main.headline


def test_finds_unbalanced_gpus():
    samples = gpu_samples(92, 5) + gpu_samples(20, 5, name="gpu1")
    assert verdict_of(training(400), samples).kind is Class.UNBALANCED_GPUS


def test_system_metrics_alone_are_inconclusive():
    verdict = verdict_of((), gpu_samples(50, 60))
    assert verdict.kind is Class.INCONCLUSIVE
    assert "sm-profiler run" in verdict.main.next_step
    assert any(what == "the training loop" for what, _ in verdict.not_judged)


def test_system_metrics_alone_have_the_reason_by_the_jobs_description():
    request = {"Environment": {"SM_PROFILER_AUTO": "1"}, "ProfilerConfig": {"S3OutputPath": "s3://bucket"}}
    metrics = attrs.evolve(metrics_of([], gpu_samples(60, 50.0)), description=request)
    verdict = decide(Case(metrics, {}))
    assert "SM_PROFILER_AUTO=1 is set, but the configuration asks for no framework metrics" in verdict.main.headline
    told = [verdict.main.next_step, framework(metrics, {}).missing, *(reason for _, reason in verdict.not_judged)]
    assert not [text for text in told if "et SM_PROFILER_AUTO=1" in text]
    assert len([text for text in told if "FrameworkProfile()" in text]) == 3


def test_no_data_is_inconclusive():
    verdict = verdict_of()
    assert verdict.kind is Class.INCONCLUSIVE
    assert "no data" in verdict.main.headline


def test_a_hook_that_saw_no_whole_step_is_not_advised():
    rows = [(event_names.COMPILE, "step", 5.0, 2.0, "algo-1-0", 0, {"again": False})]
    verdict = verdict_of(rows, metadata=({"name": "algo-1-0", "rank": 0, "node": "algo-1"},))
    assert verdict.kind is Class.INCONCLUSIVE
    assert "no training step" in verdict.main.headline
    assert "sm-profiler run" not in verdict.main.next_step


def test_few_steps_are_inconclusive():
    assert verdict_of(training(10, wait=0.1)).kind is Class.INCONCLUSIVE


def test_finds_memory_growth_with_its_rate():
    seconds = START_S + 1 + np.arange(0, 20.0)
    rng = np.random.default_rng(1)
    grown = {"algo-1-0": (seconds, 1e9 + 4e7 * np.arange(20) + rng.normal(0, 1e6, 20))}
    verdict = verdict_of(training(2000), memory=grown)
    assert verdict.kind is Class.MEMORY_GROWTH
    (rate,) = [one for one in verdict.main.evidence if one.metric == "growth per minute"]
    assert rate.value == pytest.approx(4e7 * 60, rel=0.03)


def test_numbers_of_memory_growth_multiply():
    """The gained bytes left out the warm-up, and the steps of the loop did not."""
    seconds = START_S + 1 + np.arange(0, 20.0)
    main = verdict_of(training(2000), memory={"algo-1-0": (seconds, 1e9 + 4e7 * np.arange(20))}).main
    values = {one.metric: one.value for one in main.evidence}
    gained = values["growth per step"] * values["training steps meanwhile"]
    assert gained == pytest.approx(values["resident memory gained in the loop"], rel=0.001)
    assert values["training steps meanwhile"] < 2000


@pytest.mark.parametrize("counted", [False, True])
def test_memory_growth_without_a_line_has_the_reason(counted):
    seconds = START_S + 1 + np.arange(0, 20.0)
    row = (event_names.OBJECTS, "objects", 15.0, 0.1, "algo-1-0", 0, {"types": {"Tensor": 289}})
    rows = [*training(2000), *[row] * counted]
    main = verdict_of(rows, memory={"algo-1-0": (seconds, 1e9 + 4e7 * np.arange(20))}).main
    assert ("No line is named: for that, the hook counts objects twice" in main.next_step) is not counted


def test_the_container_that_grows_is_in_the_headline():
    """It was the best evidence, and only the page had it."""
    seconds = START_S + 1 + np.arange(0, 20.0)
    counted = {"container": "list losses in __main__: 161 → 450 elements of Tensor; the new ones hold about 1.16 kB"}
    row = (event_names.OBJECTS, "objects", 15.0, 0.1, "algo-1-0", 0, {"types": {"Tensor": 289}, **counted})
    main = verdict_of([*training(2000), row], memory={"algo-1-0": (seconds, 1e9 + 4e7 * np.arange(20))}).main
    assert ", most of all list losses in __main__: 161 → 450 elements of Tensor." in main.headline


@pytest.mark.parametrize(("again", "found"), [(False, False), (True, True)])
def test_memory_may_grow_until_all_is_compiled(again, found):
    seconds = START_S + 1 + np.arange(0, 20.0)
    grown = {"algo-1-0": (seconds, 1e9 + 4e7 * np.arange(20))}
    compiled = (event_names.COMPILE, "train_step", 18.0, 0.9, "algo-1-0", 0, {"again": again})
    verdict = verdict_of([*training(2000), compiled], memory=grown)
    assert (Class.MEMORY_GROWTH in {one.kind for one in (verdict.main, *verdict.also)}) is found


def test_memory_that_grows_while_functions_are_compiled_again_is_no_leak():
    """Each shape keeps its graph and its kernels: memory grows with the compilations, and with nothing else."""
    seconds = START_S + 1 + np.arange(0, 20.0)
    grown = {"algo-1-0": (seconds, 1e9 + 4e7 * np.arange(20))}
    every = [
        (event_names.COMPILE, "train_step", 1.2 + second, 0.2, "algo-1-0", 0, {"again": True}) for second in range(19)
    ]
    kinds = [
        {one.kind for one in (verdict.main, *verdict.also)}
        for verdict in (verdict_of([*training(2000), *rows], memory=grown) for rows in (every, every[:3]))
    ]
    assert [Class.MEMORY_GROWTH in found for found in kinds] == [False, True]


@pytest.mark.parametrize(("total", "first"), [(8e9, Class.MEMORY_GROWTH), (512e9, Class.SYNC_BOUND)])
def test_memory_that_is_nearly_full_leads(total, first):
    seconds = START_S + 1 + np.arange(0, 20.0)
    grown = {"algo-1-0": (seconds, 1e9 + 4e7 * np.arange(20))}
    used = [(1 + second, 25.0, "algo-1", "memory", "MemoryUsedPercent", "") for second in range(20)]
    verdict = verdict_of(training(1500, outside=0.005), used, memory=grown, metadata=({"memory_total": total},))
    assert verdict.kind is first
    assert {verdict.main.kind, *(one.kind for one in verdict.also)} == {Class.MEMORY_GROWTH, Class.SYNC_BOUND}


def test_ignores_memory_that_only_warms_up():
    seconds = START_S + 1 + np.arange(0, 20.0)
    flat = {"algo-1-0": (seconds, 1e9 + 6e8 * (1 - np.exp(-np.arange(20) / 2)))}
    assert verdict_of(training(2000), memory=flat).kind is Class.BALANCED


def test_slope_error_covers_the_true_slope():
    rng = np.random.default_rng(3)
    x = np.arange(100.0)
    misses = 0
    for _ in range(200):
        growth = fit_growth(x, 5 * x + rng.normal(0, 50, 100))
        misses += abs(growth.slope - 5) > 2 * growth.error
    assert misses < 25


@pytest.mark.parametrize("period", [2, 3, 7, 25, 100])
def test_find_period(period):
    places = np.arange(period - 1, 500, period)
    assert find_period(places, np.ones(len(places)), 499) == (period, True)


def test_find_period_in_noise():
    places = np.sort(np.append(np.arange(24, 500, 25), [30, 77, 181]))
    weights = np.where(places % 25 == 24, 1.0, 0.3)
    assert find_period(places, weights, 499) == (25, True)
    rng = np.random.default_rng(5)
    for _ in range(50):
        chance = np.sort(rng.choice(1000, 12, replace=False))
        assert find_period(chance, np.ones(12), 999)[0] is None


def test_a_period_is_more_regular_than_chance():
    places = np.array([4, 10, 14, 18, 28, 35, 36, 44, 53])  # of 60 steps, as other programs made them long
    weights = np.array([19.3, 32.9, 22.4, 5.3, 137.6, 21.4, 5.0, 28.6, 41.1])
    assert find_period(places, weights, 59) == (None, False)
    rng, found = np.random.default_rng(6), 0
    for _ in range(300):
        chance = np.sort(rng.choice(60, 9, replace=False))
        found += find_period(chance, rng.exponential(1.0, 9), 59)[0] is not None
    assert found <= 3
    assert find_period(np.array([20, 40, 60]), np.ones(3), 79) == (20, True)


def test_gaps_that_agree_by_chance_are_no_period():
    rng, found = np.random.default_rng(7), 0
    for _ in range(300):
        places = np.flatnonzero(rng.random(100) < 0.3)
        found += find_period(places, np.ones(len(places)), 99)[0] is not None
    assert found <= 3


@pytest.mark.parametrize(("sampled_s", "sure"), [(0, False), (20, True)])
def test_a_period_in_a_loop_too_short_to_measure_others_is_not_sure(sampled_s, sure):
    metrics = metrics_of(training(600, every=50, stall=0.2), metadata=({"framework": "pytorch"},))
    seconds = metrics.ranks[0].start + np.arange(float(sampled_s))
    usage = Usage(seconds, 0.9 * np.arange(float(sampled_s)), np.zeros(sampled_s))
    main = decide(Case(attrs.evolve(metrics, usage={"algo-1-0": usage}), {})).main
    assert main.kind is Class.PERIODIC_STALL
    assert main.confidence == ("medium" if sure else "low")
    assert main.doubt == MAY_BE_NEEDED if sure else "too short" in main.doubt


def forward_only(learn, ahead, rounds):
    """Return rounds of training steps, some of which only have a forward pass."""
    rows, now = [], 1.0
    for number in range(rounds):
        first = number * (learn + ahead)
        rows += training(learn, at=now, number=first)
        now += learn * 0.0102
        rows += training(ahead, backward=0, optimizer=0, forward=0.006, outside=0, at=now, number=first + learn)
        now += ahead * 0.007
    return rows


def test_an_evaluation_without_no_grad_is_no_training():
    metrics = metrics_of(forward_only(learn=10, ahead=20, rounds=20))
    (rank,) = metrics.ranks
    assert (rank.train_steps, rank.forward_only) == (200, 400)
    main = decide(Case(metrics, {})).main
    assert main.kind is Class.EVALUATION_BOUND
    assert main.share_of_time == pytest.approx(0.14 / (0.14 + 0.102), abs=0.03)
    assert main.next_step.startswith("Evaluate under torch.no_grad()")


def test_losses_that_are_added_up_are_training():
    (rank,) = metrics_of(forward_only(learn=1, ahead=3, rounds=100)).ranks
    assert (rank.train_steps, rank.forward_only) == (400, 0)


def test_what_is_not_computing_is_what_the_parts_leave():
    rows, now = [], 1.0
    for step in range(60):  # a third of the steps computes far longer, at no interval
        length = 0.06 if step in {8, 10, 14, 17, 19, 23, 27, 37, 38, 45, 47, 50, 52} else 0.001
        one = training(1, wait=0, forward=length / 2, backward=length / 2, outside=0.002, at=now, number=step)
        rows, now = rows + one, one[-1][2] + one[-1][3] + 0.002
    main = verdict_of(rows).main
    assert main.label == "No single cause"
    parts = {one.metric: one.value for one in main.evidence}
    computing = parts["time inside training steps"]
    assert f"but {percent(1 - computing)} of the loop is not spent computing, and 76 %" in main.headline


def test_no_cause_and_an_idle_gpu_are_no_health():
    healthy = verdict_of(training(200)).main
    assert (healthy.kind, healthy.is_open) == (Class.BALANCED, False)
    idle = verdict_of(training(400), gpu_samples(lambda tick: 95 * (tick % 3 == 0), 6)).main
    assert (idle.is_open, idle.confidence) == (True, "low") if idle.kind is Class.BALANCED else (False, "low")


def stretched(rows, steps, choose, extra):
    """Add `extra` seconds to one part of some steps; `choose(step)` returns the part."""
    result, shift = [], 0.0
    for phase, name, start, length, node, step in rows:
        if phase.startswith("Step") and step in steps:
            begin = next(row[2] for row in reversed(result) if row[0] == "Forward" and row[5] == step)
            result.append((phase, name, begin, length + extra, node, step))
            continue
        grows = step in steps and phase == choose(step)
        result.append((phase, name, start + shift, length + extra * grows, node, step))
        shift += extra * grows
    return result


def test_long_steps_may_grow_in_several_parts_together():
    rng = np.random.default_rng(6)
    steps = {int(step) for step in rng.choice(np.arange(10, 600), 15, replace=False)}  # 2.5 %
    rows, now = [], 1.0
    for step in range(600):
        factor = 15 if step in steps else 1
        jitter = float(rng.uniform(0.8, 1.2)) * factor
        rows += training(1, forward=0.003 * jitter, backward=0.005 * jitter, at=now, number=step)
        now = rows[-1][2] + rows[-1][3] + 0.0002
    verdict = verdict_of(rows)
    assert verdict.kind is Class.STEP_OUTLIERS
    assert "in the backward pass and in the forward pass" in verdict.main.headline


def test_long_steps_need_a_common_part():
    rng = np.random.default_rng(2)
    steps = {int(step) for step in rng.choice(np.arange(10, 400), 20, replace=False)}
    cause = stretched(training(400), steps, lambda _: "Forward", 0.06)
    assert verdict_of(cause).kind is Class.STEP_OUTLIERS
    parts = ("Forward", "Backward(post-forward)", "Optimizer")
    noise = stretched(training(400), steps, lambda step: parts[step % 3], 0.06)
    assert verdict_of(noise).kind is Class.BALANCED


def test_a_loop_that_updates_its_parameters_by_hand_has_more_time_outside():
    assert verdict_of(training(400, wait=0, optimizer=0, outside=0.003)).kind is not Class.SYNC_BOUND
    assert verdict_of(training(400, wait=0, optimizer=0, outside=0.010)).kind is Class.SYNC_BOUND
    assert verdict_of(training(400, wait=0, outside=0.004)).kind is Class.SYNC_BOUND


@pytest.mark.parametrize(("waited", "confidence"), [(0.0, "high"), (1.2, "medium"), (1.9, None)])
def test_long_steps_that_wait_for_a_core_are_the_machines(waited, confidence):
    """On a machine that others use, any step may be long; its line in the script is chance."""
    metrics = metrics_of(stretched(training(400), {31, 58, 140, 203, 371}, lambda _: "Forward", 0.4))
    samples = Samples(waited={"algo-1-0": (0.0, waited)})
    main = decide(Case(attrs.evolve(metrics, samples=samples), {})).main
    found = main.confidence if main.kind is Class.STEP_OUTLIERS else None
    assert found == confidence


def test_the_reason_of_a_confidence_is_shown():
    """The level alone does not show what would make the verdict surer."""
    report = report_from(training(60, wait=0.02))
    main = report.verdict.main
    assert (main.kind, main.confidence, main.doubt) == (Class.INPUT_BOUND, "medium", "only 59 steps")
    assert "(medium confidence: only 59 steps)" in terminal_summary(report)
    assert "medium confidence: only 59 steps" in render_html(report)
    assert json.loads(to_json(report))["verdict"]["confidence_reason"] == "only 59 steps"
    sure = report_from(training(400, wait=0.02)).verdict.main
    assert (sure.confidence, sure.doubt) == ("high", "")


@pytest.mark.parametrize(("steps", "named"), [(12, True), (4, False)])
def test_a_loop_that_compiling_again_keeps_short_is_not_simply_too_short(steps, named):
    rows = training(steps, wait=0, forward=1.0, backward=0.001, optimizer=0.001)
    again = [(event_names.COMPILE, "step", row[2] + 0.01, 0.97, "algo-1-0", row[5], {"again": True}) for row in rows if row[0] == "Forward"]  # fmt: skip
    main = verdict_of([*rows, *again[3:]]).main
    assert main.kind is (Class.RECOMPILATION if named else Class.INCONCLUSIVE)
    assert "compiles step again 9 times" in main.headline or not named
    assert "Compiling" not in verdict_of(rows).main.headline
