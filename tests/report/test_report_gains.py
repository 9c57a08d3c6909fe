"""Gains: each class's model, no second claimed twice, and numbers that hold for any data."""

import json
import math

import attrs
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import astuple

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.model import Evidence, Finding, Gain, Interval, Verdict
from sm_profiler.diagnosis.profile.case import Case
from sm_profiler.diagnosis.profile.causes import CAUSES
from sm_profiler.diagnosis.profile.inputs import Workers, left_after
from sm_profiler.diagnosis.profile.ledger import EVALUATION
from sm_profiler.diagnosis.profile.loader_queue import fetch_times, simulated_wait
from sm_profiler.diagnosis.profile.loop import loop_of_parts
from sm_profiler.diagnosis.profile.verdict import decide, priced
from sm_profiler.diagnosis.repairing import Saving
from sm_profiler.formats.event_names import OPERATORS
from sm_profiler.metrics import thresholds
from sm_profiler.metrics.sample_fold import Place, Sampled, Samples
from sm_profiler.metrics.step_fold import LoaderSettings
from sm_profiler.metrics.system_fold import Usage
from sm_profiler.render.terminal import terminal_summary
from sm_profiler.render.words import gain_sentence
from sm_profiler.report.compare import compare
from sm_profiler.report.prices import lost_time
from sm_profiler.report.report_json import plain
from tests.support.reports import START_S, gpu_samples, in_step, jitter, metrics_of, ranked, report_from, training

STEP = 0.0102  # seconds of an iteration of report_helpers.training()


def gain_of(rows, kind, system_rows=(), *, workers=None, **options):
    metrics = metrics_of(rows, system_rows, **options)
    if workers is not None:
        metrics = attrs.evolve(metrics, loader=LoaderSettings(workers, 0))
    context = Case(metrics, {})
    verdict = decide(context)
    return next(one.gain for one in (verdict.main, *verdict.also) if one.kind is kind)


def contains(interval, truth):
    return interval.low <= truth <= interval.high


@pytest.mark.parametrize(
    ("planted", "kind", "lost"),
    [
        ({"wait": 0.021}, Class.INPUT_BOUND, 0.02),
        ({"outside": 0.0102}, Class.SYNC_BOUND, 0.01),
        ({"every": 50, "stall": 0.2}, Class.PERIODIC_STALL, 11 * 0.2 / 597),
        ({"optimizer": 0.031}, Class.OPTIMIZER_BOUND, 0.03),
    ],
)
def test_interval_contains_what_was_planted_and_is_narrow(planted, kind, lost):
    gain = gain_of(training(600, **planted), kind)
    assert contains(gain.seconds_per_step, lost)
    assert contains(gain.speedup, (STEP + lost) / STEP)
    # of an optimizer, half may be left: sparse or rarer updates are work, too
    assert gain.speedup.high / gain.speedup.low < (2.2 if kind is Class.OPTIMIZER_BOUND else 1.7)
    assert gain.of == "loop"


def test_a_gain_exceeds_its_share_by_its_error_only():
    random, rows, now = np.random.default_rng(8), [], 1.0
    for step in range(60):  # most of the rest is a few steps, of which another run may have fewer
        one = training(
            1, wait=0.004, forward=2.0 if random.random() < 0.05 else 0.003, backward=0.001, at=now, number=step
        )
        rows, now = rows + one, one[-1][2] + one[-1][3] + 0.0002
    loop = Case(metrics_of(rows), {}).loop
    _, share, _ = loop.gain(Saving(loop.of_activity("waiting for data")))
    assert share.value == pytest.approx(loop.share("waiting for data"), rel=0.02)
    assert share.high < share.value + 0.1


def test_collections_are_saved_but_for_a_rest():
    rows = training(400, outside=0.0032)
    rows += [("GC", "GC", 1.01 + 0.0132 * step, 0.003, "algo-1-0", step) for step in range(400)]
    gain = gain_of(rows, Class.GC_BOUND)
    assert contains(gain.seconds_per_step, 0.003 * limits.SAVED[1])


def test_evaluation_is_saved_but_for_a_rest():
    rows, at = [], 1.0
    for epoch in range(10):
        rows += training(50, at=at, number=50 * epoch)
        rows += training(50, at=at + 0.6, mode="EVAL", number=50 * epoch, backward=0, optimizer=0, forward=0.016)
        at += 1.6
    gain = gain_of(rows, Class.EVALUATION_BOUND)
    assert gain.share_of_loop.value == pytest.approx(limits.SAVED[1] * 0.54, rel=0.05)
    assert gain.share_of_loop.high < 0.62


def test_two_runs_differ_by_chance():
    exact = Interval(0.5, 0.5, 0.5).speedup
    assert exact.value == 2.0
    assert 1.05 < exact.value / exact.low < 1.1
    assert exact.high / exact.value == pytest.approx(exact.value / exact.low)
    wide = Interval(0.4, 0.6, 0.8).speedup  # chance adds little to what is known this badly
    assert (wide.low, wide.high) == pytest.approx((1 / 0.6, 1 / 0.2), rel=0.03)
    small = Interval(0.04, 0.05, 0.06).speedup  # and a gain that is certain does not vanish
    assert small.low == pytest.approx(1 + (1 / 0.96 - 1) / 2)
    assert Interval(0.98, 0.99, 0.99).speedup.high == pytest.approx(100)


def test_a_straggler_works_like_the_median_of_the_others_or_all_like_the_mean():
    rows = []
    for rank in range(4):
        slow = rank == 2
        rows += training(
            200, forward=0.013 if slow else 0.003, backward=0.005 if slow else 0.015, node=f"algo-1-{rank}"
        )
    gain = gain_of(rows, Class.STRAGGLER)
    assert contains(gain.seconds_per_step, 0.01)
    assert contains(gain.seconds_per_step, 0.0075)
    assert gain.speedup.high / gain.speedup.low < 1.5


@pytest.mark.parametrize("line", ["time.sleep(delay)", "scan = resampled(scan)"])
def test_the_work_of_a_late_rank_can_be_divided_unless_it_sleeps(line):
    works = np.full((2, 200), 0.003)
    works[1] += 0.01
    stacks = tuple(
        Sampled(name, "forward", False, (Place("train.py", number, "main"),), "", seconds, count)
        for name, number, seconds, count in (
            ("algo-1-1", 30, 2.0, 40),
            ("algo-1-0", 40, 1.0, 20),
            ("algo-1-1", 40, 1.0, 20),
        )
    )
    samples = Samples(stacks, {("train.py", 30): line})
    main = decide(Case(attrs.evolve(metrics_of(in_step(works)), samples=samples), {})).main
    assert main.kind is Class.STRAGGLER
    length = 0.0202
    assert contains(main.gain.speedup, length / (length - 0.0101))
    assert contains(main.gain.speedup, length / (length - 0.0051)) == ("sleep" not in line)


def test_start_is_a_gain_of_the_job_and_not_of_the_loop():
    gain = gain_of(training(400, at=60), Class.INITIALIZATION_BOUND, gpu_samples(70, 65), instance_type="ml.g5.xlarge")
    assert gain.of == "job"
    assert gain.share_of_loop.high == gain.seconds_per_step.high == 0
    assert 20 < gain.seconds.value < 60
    assert gain.speedup.value > 1
    assert "of the job" in gain_sentence(gain)


def test_healthy_and_inconclusive_jobs_and_memory_have_no_gain():
    assert report_from(training(300)).verdict.main.gain is None
    assert report_from([]).verdict.main.gain is None
    seconds = np.arange(60.0)
    growing = {"algo-1-0": (seconds + 1_700_000_000, 1e9 + seconds * 1e8)}
    report = report_from(training(6000), memory=growing, instance_type="ml.g5.xlarge")
    main = report.verdict.main
    assert (main.kind, main.gain, main.share_of_time) == (Class.MEMORY_GROWTH, None, 0.0)
    assert lost_time(report.metrics, report.verdict)[0] == 0


def test_dollars_need_a_price():
    rows = training(300, wait=0.02)
    with_price = report_from(rows, instance_type="ml.g5.xlarge").verdict.main.gain
    assert with_price.usd.value == pytest.approx(with_price.seconds.value * 1.408 / 3600, rel=0.2)
    assert report_from(rows).verdict.main.gain.usd is None


def test_gains_do_not_depend_on_the_order_of_the_findings():
    rows = training(400, optimizer=0.013)
    rows += [("GC", "GC", 1.01 + 0.0222 * step, 0.01, "algo-1-0", step) for step in range(400)]
    context = Case(metrics_of(rows), {})
    cause, symptom = (Finding(kind, "", (), "", 0.5) for kind in (Class.GC_BOUND, Class.OPTIMIZER_BOUND))
    gains = [
        {one.finding.kind: one.finding.gain.share_of_loop for one in ranked(pair, context)}
        for pair in ((cause, symptom), (symptom, cause))
    ]
    assert gains[0] == gains[1]
    assert gains[0][Class.GC_BOUND].value == pytest.approx(0.01 * limits.SAVED[1] / 0.0222, rel=0.02)


def test_recorded_calls_are_saved_at_the_steps_in_which_they_happened():
    rows = training(400, every=20, stall=0.1)
    at = [1.0 + 0.0102 * (step + 1) + 0.1 * (step // 20) for step in range(0, 400, 20)]
    rows += [
        ("sm_profiler/save", "torch.save", start, 0.1, "algo-1-0", 20 * number, {"bytes": 10**6})
        for number, start in enumerate(at)
    ]
    context = Case(metrics_of(rows), {})
    assert decide(context).kind is Class.CHECKPOINTING
    gain = gain_of(rows, Class.CHECKPOINTING)
    assert contains(gain.seconds_per_step, 0.005)
    assert gain.seconds_per_step.high / gain.seconds_per_step.low < 1.7
    assert decide(context).also == ()  # nothing is left of the stalls


def test_sums_of_many_short_calls_are_saved_at_all_steps():
    rows = training(400, outside=0.0102)
    duration = 400 * 0.0202
    calls = [
        (
            "sm_profiler/log",
            "print",
            1.0 + at,
            0.5,
            "algo-1-0",
            int(at / 0.0202),
            {"calls": 400, "file": "train.py", "line": 3, "function": "f"},
        )
        for at in np.arange(0, duration - 0.5, 1.0)
    ]
    context = Case(metrics_of(rows + calls), {})
    assert Class.LOGGING in {one.kind for one in (decide(context).main, *decide(context).also)}
    gain = gain_of(rows + calls, Class.LOGGING)
    assert contains(gain.share_of_loop, 0.5 * len(calls) / duration)
    assert gain.speedup.high / gain.speedup.low < 1.5


def recompiling(is_again, slow):
    """Return the rows of 400 steps, some of which compile for 0.1 s and then run slowly once."""
    rows, now = [], 1.0
    for step in range(400):
        again = is_again(step)
        rows += training(1, forward=0.103 + slow if again else 0.003, at=now, number=step)
        if again:
            args = {"again": True, "file": "train.py", "line": 3, "function": "f"}
            rows.append(("sm_profiler/compile", "forward", now + 0.0015, 0.1, "algo-1-0", step, args))
        now += 0.0102 + (0.1 + slow if again else 0.0)
    return rows


@pytest.mark.parametrize("slow", [0.0, 0.04])
def test_recompilations_are_saved_with_the_slow_runs_that_follow(slow):
    def again(step):
        return step < 40 or step % 10 == 0

    gain = gain_of(recompiling(again, slow), Class.RECOMPILATION)
    steps = range(int(thresholds.WARM_UP_STEPS), 400)
    lost = (0.1 + slow) * sum(map(again, steps)) / len(steps)
    assert contains(gain.speedup, (STEP + lost) / STEP)
    assert gain.speedup.high / gain.speedup.low < 2.1


def test_if_each_step_compiles_again_the_rest_of_it_is_unknown():
    gain = gain_of(recompiling(lambda _: True, 0.04), Class.RECOMPILATION)
    assert gain.speedup.low < 4
    assert contains(gain.speedup, (STEP + 0.14) / STEP)


@pytest.mark.parametrize("slow", [0.006, 0.02])
def test_a_loop_that_became_slow_gets_as_fast_as_before(slow):
    rows, now = [], 1.0
    for step in range(600):
        forward = 0.003 + (slow if step >= 200 else 0.0)
        rows += training(1, forward=forward, at=now, number=step)
        now += 0.0072 + forward
    gain = gain_of(rows, Class.FAIL_SLOW)
    assert contains(gain.speedup, (STEP + slow * 2 / 3) / STEP)
    assert gain.speedup.high / gain.speedup.low < 1.7


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_that_are_late_in_turn_share_their_work_or_lose_it(ranks):
    works = jitter(ranks, spread=0.02)
    works[np.arange(200) % ranks, np.arange(200)] += 0.006
    gain = gain_of(in_step(works), Class.MOVING_STRAGGLER)
    for saved in (0.006 * (1 - 1 / ranks), 0.006):
        assert gain.speedup.low * 0.99 <= 0.0162 / (0.0162 - saved) <= gain.speedup.high
    assert gain.speedup.high / gain.speedup.low < 1.5


def test_collections_at_different_steps_are_saved_on_the_slowest_rank():
    collections = np.zeros((2, 300))
    collections[0, ::6] = collections[1, 3::6] = 0.02
    works = np.full((2, 300), 0.003) + collections
    gain = gain_of(in_step(works, collections=collections, steps=300), Class.GC_OUT_OF_PHASE)
    assert contains(gain.seconds_per_step, 0.02 / 3 * 0.95)
    assert gain.speedup.high / gain.speedup.low < 1.5


def test_pauses_of_the_job_inside_the_loop_are_gains_of_the_job():
    context = Case(metrics_of(training(400, wait=0.02)), {})
    waits = decide(context).main
    pauses = Finding(Class.IDLE, "", (), "", 0.9, of="job", confidence="high")
    seconds = [one.finding.gain.seconds.value for one in ranked([pauses, waits], context)]
    assert all(one > 0 for one in seconds)
    assert sum(seconds) <= context.metrics.duration


# --- the loader


def test_enough_workers_hide_loading():
    compute, fetch = np.full(500, 0.01), np.full(500, 0.03)
    assert simulated_wait(fetch, compute, 0) == pytest.approx(0.03)
    assert simulated_wait(fetch, compute, 1) == pytest.approx(0.02, rel=0.02)
    assert simulated_wait(fetch, compute, 2) == pytest.approx(0.005, rel=0.05)
    assert simulated_wait(fetch, compute, 3) == pytest.approx(0.0, abs=1e-9)


def test_a_deep_queue_smooths_varying_batches():
    draw = np.random.default_rng(1)
    fetch, compute = draw.exponential(0.018, 2000), np.full(2000, 0.01)
    shallow, deep = (simulated_wait(fetch, compute, 2, prefetch) for prefetch in (1, 16))
    assert deep < shallow / 2


def test_time_of_a_busy_worker_is_the_length_of_its_round():
    assert fetch_times(np.zeros(10), np.full(10, 0.02), 3) == pytest.approx(np.full(8, 0.06))
    assert fetch_times(np.full(4, 0.5), np.ones(4), 0) == pytest.approx(np.full(4, 0.5))
    assert len(fetch_times(np.zeros(2), np.ones(2), 100)) == 1
    assert simulated_wait(np.empty(0), np.ones(5), 2) == 0.0


def test_workers_that_compute_cannot_save_more_than_the_cores_allow():
    """Two cores, all busy: a third of the wait is what they do beside the steps."""
    cpu = [
        (1 + tick / 2, 90.0, "algo-1", "cpu", f"cpu{core}", "CPUUtilization") for tick in range(20) for core in range(2)
    ]
    gain = gain_of(training(500, wait=0.006, forward=0.001), Class.INPUT_BOUND, cpu, workers=1)
    idle = [(row[0], 5.0, *row[2:]) for row in cpu]
    without_load = gain_of(training(500, wait=0.006, forward=0.001), Class.INPUT_BOUND, idle, workers=1)
    assert gain.share_of_loop.low < without_load.share_of_loop.low


def test_workers_on_two_cores_do_not_certainly_more_than_halve_a_step():
    """Other programs had the cores for most of the time, which looked as if loading needed a third of one."""
    pool = Workers(0, 2, 9, 0.009, 0.001, idle=False)
    least, usual, _ = left_after(pool, np.full(200, 0.009), np.full(200, 0.001), 1.0, [0.4])
    assert 0.010 / (0.001 + least) <= 2 < 0.010 / (0.001 + usual)


def test_without_a_free_core_loading_is_shared_and_does_not_vanish():
    """Loading takes 9 of 10 ms and computes: eight workers would be needed, and two cores halve the step at best."""
    pool = Workers(0, 2, 9, 0.009, 0.001, idle=False)
    wait, compute = np.full(200, 0.009), np.full(200, 0.001)
    least, usual, most = left_after(pool, wait, compute, 1.0, [])
    assert 0.010 / (0.001 + usual) == pytest.approx(1.9, abs=0.15)
    assert least >= usual >= most
    assert most == 0  # what is prepared once is loaded without any work


# --- for any data


def finite(value):
    return all(math.isfinite(one) for one in astuple(value))


def check(verdict):
    """Require what holds for the gains of every verdict."""
    gains = [one.gain for one in (verdict.main, *verdict.also) if one.gain is not None]
    left = 1.0
    for gain in gains:
        for interval in (gain.seconds_per_step, gain.share_of_loop, gain.speedup, gain.seconds, gain.usd):
            assert interval is None or (finite(interval) and 0 <= interval.low <= interval.value <= interval.high)
        assert gain.speedup.low >= 1
        left -= gain.share_of_loop.value
    assert left >= 0
    json.dumps(plain(gains), allow_nan=False)
    return gains


times = st.floats(0, 0.05)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    wait=times, forward=times, backward=times, optimizer=times, outside=times, stall=st.floats(0, 2),
    every=st.integers(2, 40), steps=st.integers(15, 120), ranks=st.integers(1, 3), at=st.floats(0, 100),
)  # fmt: skip
def test_gains_of_any_loop_add_up_to_less_than_it_lost(ranks, steps, **parts):
    rows = []
    for rank in range(ranks):
        own = {**parts, "forward": parts["forward"] * (1 + rank)}
        rows += training(steps, **own, node=f"algo-1-{rank}")
    check(report_from(rows, gpu_samples(30, 10), instance_type="ml.g5.xlarge").verdict)


shares = st.floats(allow_nan=True, allow_infinity=True) | st.floats(0, 1)
found = st.builds(
    lambda kind, share, of, confidence, where: Finding(
        kind, "headline", (Evidence("metric", 1.0, None, where),), "next", share, of, confidence
    ),
    st.sampled_from([cause.kind for cause in CAUSES]), shares, st.sampled_from(["loop", "job"]), st.sampled_from(["low", "medium", "high"]),
    st.sampled_from(["", "algo-1-0", "algo-1-1", "algo-9-9"]),
)  # fmt: skip
LOOPS = [
    training(100, wait=0.01, every=20, stall=0.1) + training(100, forward=0.01, every=7, stall=0.1, node="algo-1-1"),
    training(60, optimizer=0.01),
    training(10),
    training(40, wait=0, forward=0, backward=0, optimizer=0, outside=0.0),
    [],
]
CONTEXTS = [Case(metrics_of(rows), {}) for rows in LOOPS]


@settings(max_examples=60, deadline=None)
@given(findings=st.lists(found, min_size=1, max_size=8), loop=st.integers(0, len(LOOPS) - 1))
def test_any_findings_get_gains_that_hold(findings, loop):
    order = [one.finding for one in ranked(findings, CONTEXTS[loop])]
    if not order:
        return
    gains = check(priced(Verdict(order[0], tuple(order[1:])), 3.0))
    for gain in gains:
        assert "nan" not in gain_sentence(gain)


def test_damaged_times_give_finite_gains():
    rows = training(100, wait=0.02)
    rows[50] = (*rows[50][:2], rows[50][2], 1e9, *rows[50][4:])
    rows[90] = (*rows[90][:2], rows[90][2], -5.0, *rows[90][4:])
    check(report_from(rows).verdict)


def test_table_divides_each_row_completely():
    rows = training(60) + training(20, mode="EVAL", at=2.0) + training(60, at=3.0, number=60)
    metrics = metrics_of(rows)
    table = loop_of_parts(metrics.ranks)
    ends = metrics.ranks[0].steps.end[metrics.ranks[0].train] / 1e6
    assert table.total == pytest.approx(ends[-1] - ends[int(thresholds.WARM_UP_STEPS) - 1], rel=1e-6)
    assert len(table.length) == table.steps + 1
    assert table.of_activity(EVALUATION).sum() == pytest.approx(20 * STEP, abs=0.02)


def test_steps_that_the_profiler_slowed_are_no_gain():
    """Steps left out of the judged ones are no rows, and no evaluation."""
    rows = training(100, wait=0.02)
    end = rows[-1][2] + rows[-1][3] + 0.0002
    rows += training(20, at=end, forward=0.5, number=100)
    rows += training(100, at=end + 20 * 0.5072, wait=0.02, number=120)
    window = (
        "sm_profiler/profiling",
        "detailed",
        end,
        20 * 0.5072,
        "algo-1-0",
        100,
        {"kind": "window", "slower": 50.0},
    )
    report = report_from([*rows, window])
    table = loop_of_parts(report.metrics.ranks)
    assert report.metrics.ranks[0].left_out == 20
    assert table.length.max() < 0.05
    assert table.steps == pytest.approx(196, abs=2)
    assert contains(report.verdict.main.gain.seconds_per_step, 0.0195)


def test_long_jobs_are_cut_into_few_blocks():
    context = Case(metrics_of(training(100, wait=0.02)), {})
    rank = context.ranks[0]
    repeat = 2000

    def many(values):
        return np.tile(values, (repeat, *(1,) * (values.ndim - 1)))

    start = np.concatenate([rank.steps.start + number * 2.92e6 for number in range(repeat)])
    steps = attrs.evolve(
        rank.steps, start=start, duration=many(rank.steps.duration), number=np.arange(len(start)), mode=many(rank.steps.mode),
        parts=many(np.asarray(rank.steps.parts)), gc_in_wait=many(rank.steps.gc_in_wait),
    )  # fmt: skip
    from sm_profiler.metrics.job_metrics import measure_rank

    long = measure_rank(rank.name, steps, (start[0], start[-1]), rank.attempts)
    context = Case(attrs.evolve(context.metrics, ranks=(long,)), {})
    assert len(check(decide(context))) == 1


# --- wording


def gain(speedup, usd=None, of="loop", share=(0.0, 0.0, 0.0), seconds=(0.0, 0.0, 0.0)):
    money = Interval(usd, usd, usd) if usd is not None else None
    return Gain(Interval(0, 0, 0), Interval(*share), Interval(*speedup), money, Interval(*seconds), of)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (gain((1.6, 1.7, 1.8), 210.4), "Repairing it makes the loop 1.6 to 1.8 times as fast, saves about $210."),
        (gain((12.2, 14.0, 18.9)), "Repairing it makes the loop 12 to 19 times as fast."),
        (gain((1.21, 1.25, 1.29), 0.001), "Repairing it makes the loop 1.21 to 1.29 times as fast."),
        (
            gain((1.03, 1.05, 1.07), 2.1, share=(0.03, 0.05, 0.07)),
            "Repairing it saves 3 to 7 % of the loop, about $2.10.",
        ),
        (gain((1.1, 1.2, 1.3), of="job", seconds=(20, 30, 40)), "Repairing it saves 20 to 40 s of the job."),
        (gain((1.0, 1.0, 1.0)), ""),
        (None, ""),
    ],
)
def test_sentence(given, text):
    assert gain_sentence(given) == text


@pytest.mark.parametrize(("high", "ends"), [(1.6, "fast."), (1.9, "fast; two runs also differ by chance.")])
def test_a_speedup_beyond_the_share_has_its_reason(high, ends):
    """Of a loop that loses 36 %, no repair makes 1.9 times as fast; two runs of it may differ by that."""
    text = gain_sentence(gain((1.2, 1.4, high)), lost=0.36)
    assert text == f"Repairing it makes the loop 1.2 to {high} times as {ends}"
    assert "chance" not in gain_sentence(gain((4.9, 30, 100)), lost=0.36)


def test_a_cap_is_no_estimate():
    assert gain_sentence(gain((4.9, 30, 100))) == "Repairing it makes the loop more than 4.9 times as fast."
    assert "more than 1.8 times" in gain_sentence(gain((1.8, 5, 48.9)))  # a range of all sizes is no estimate


# --- the next run


def test_prediction_is_compared_with_the_next_run():
    before, after = report_from(training(400, wait=0.0205)), report_from(training(400, wait=0.0005))
    (one,) = compare(before, after).predictions
    assert one.findings == ("INPUT_BOUND",)
    assert one.repaired
    assert one.held
    assert one.measured.value == pytest.approx((STEP + 0.0195) / (STEP - 0.0005), rel=0.01)
    assert one.sentence.startswith("Repairing INPUT_BOUND: predicted 2.")
    assert one.sentence.endswith("times as fast, measured 3.06.") or "measured 3" in one.sentence


def test_finding_that_is_still_there_is_not_called_repaired():
    report = report_from(training(400, wait=0.02))
    (one,) = compare(report, report).predictions
    assert not one.repaired
    assert "still found" in one.sentence
    assert "measured" not in one.sentence


def test_gains_of_several_repairs_are_combined():
    before = report_from(training(600, wait=0.02, every=50, stall=0.3))
    after = report_from(training(600))
    (one,) = compare(before, after).predictions
    assert set(one.findings) == {"INPUT_BOUND", "PERIODIC_STALL"}
    assert one.held


def test_larger_batches_are_compared_by_sample():
    before = report_from(training(400, forward=0.0003, backward=0.0005, optimizer=0.0001, wait=0.0001))
    after = report_from(training(400))
    sized = [
        attrs.evolve(report, metrics=attrs.evolve(report.metrics, batch_size=size))
        for report, size in ((before, 8), (after, 256))
    ]
    assert not any(one.repaired for one in compare(before, after).predictions)  # by the step, it is slower
    faster = after.metrics.steps_per_second / before.metrics.steps_per_second
    assert compare(*sized).predictions[0].measured.value == pytest.approx(32 * faster, rel=0.01)


def test_no_prediction_without_steps():
    assert compare(report_from([]), report_from(training(400))).predictions == ()


def test_claims_outside_their_parts_are_cut():
    claim = Saving.of_scenarios([np.array([1.0, -1.0]), np.array([2.0, 0.0]), np.array([4.0, 0.0])], ("wait",))
    assert (claim.low, claim.high, claim.strict) == (0.5, 2.0, True)


def test_other_load_on_the_machine_does_not_hide_what_workers_save():
    """All cores are busy, but loading and steps take one of them: another core's worth is that of other programs."""
    cpu = [
        (1 + tick / 2, 99.0, "algo-1", "cpu", f"cpu{core}", "CPUUtilization") for tick in range(20) for core in range(2)
    ]
    gain = gain_of(training(500, wait=0.0102), Class.INPUT_BOUND, cpu, workers=0)
    assert gain.share_of_loop.value > 0.4
    assert gain.share_of_loop.low > 0.1


@pytest.mark.parametrize(("worker", "advised"), [(1.0, True), (1.5, False)])
def test_cores_that_others_use_are_free_for_workers(worker, advised):
    """All cores were busy with the job's 1.5 and another program, so that fewer workers were advised; one more helped."""
    cpu = [
        (1 + tick / 2, 99.0, "algo-1", "cpu", f"cpu{core}", "CPUUtilization") for tick in range(20) for core in range(2)
    ]
    metrics = metrics_of(training(500, wait=0.0102), cpu)
    at = np.linspace(START_S, START_S + 20, 41)
    usage = Usage(at, 0.5 * at, np.zeros(41), np.zeros(41), worker * at)
    loader = attrs.evolve(metrics.loader, num_workers=1)
    found = decide(Case(attrs.evolve(metrics, usage={"algo-1-0": usage}, loader=loader), {})).main
    assert found.kind is Class.INPUT_BOUND
    assert ("num_workers=2" in found.next_step) == advised
    assert ("all CPU cores are busy" in found.headline) != advised


@pytest.mark.parametrize("operators", [None, 120, 250])
def test_larger_batches_save_what_does_not_grow_with_them(operators):
    tiny = training(400, forward=0.0003, backward=0.0005, optimizer=0.0001, wait=0.0001)
    if operators:
        tiny.append(("sm_profiler/operators", "operators", 1.5, 0.0, "algo-1-0", 10, {"operators": operators, "fixed_us": 2.0, "step_us": 1200.0}))  # fmt: skip
    report = report_from(tiny)
    found = report.verdict.main
    assert found.kind is Class.HOST_BOUND
    for grows in (0.0001 * 0.6, 0.0001 * 0.8 + (0.00003 if operators == 250 else 0.0001)):
        assert contains(found.gain.speedup, 0.0012 / ((0.0012 - grows) / 8 + grows))
    assert found.gain.speedup.high / found.gain.speedup.low < {250: 3.3, 120: 4.5, None: 5.5}[operators]
    assert found.gain.speedup.high <= 8
    assert "A batch 8 times as large makes the loop" in terminal_summary(report, width=200)


def test_a_gpu_that_is_hardly_busy_can_compute_a_larger_batch():
    report = report_from(training(3000, wait=0.0001), gpu_samples(30, 40))
    assert report.verdict.kind is Class.HOST_BOUND
    assert contains(report.verdict.main.gain.speedup, 1 / (0.7 / 8 + 0.3))
    assert report.verdict.main.gain.speedup.high < 8


def test_a_gain_of_a_larger_batch_is_shown_with_advice_to_take_one():
    """The GPU's memory is unknown, and the advice is about blocking calls, but the gain was that of a larger batch."""
    samples = [row for row in gpu_samples(30, 40) if row[-1] == "GPUUtilization"]
    report = report_from(training(3000, wait=0.0001), samples)
    assert report.verdict.kind is Class.HOST_BOUND
    assert "larger batch" not in report.verdict.main.next_step
    text = terminal_summary(report, width=200)
    assert "A batch" not in text
    assert "Repairing it makes the loop" in text


def test_a_larger_batch_saves_no_more_than_its_factor_with_any_error_of_the_steps():
    tiny = training(400, forward=0.0003, backward=0.0005, optimizer=0.0001, wait=0.0)
    gain = report_from(tiny).verdict.main.gain
    assert gain.share_of_loop.high <= 1 - 1 / limits.BATCH_LARGER


@pytest.mark.parametrize(
    ("wait", "leads"), [(0.0, Class.HOST_BOUND), (0.01, Class.HOST_BOUND), (0.015, Class.INPUT_BOUND)]
)
def test_a_larger_batch_comes_after_a_repair_that_leaves_the_training_as_it_is(wait, leads):
    """Unless it saves twice as much: what is learned depends on the batch."""
    phases = {"forward": 0.012, "backward": 0.014, "optimizer": 0.002}
    counted = {"operators": 6000, "fixed_us": 4.1, "step_us": 1e6 * (sum(phases.values()) + wait)}
    rows = [*training(400, wait=wait, **phases), (OPERATORS, "operators", 1.5, 0.0, "algo-1-0", 10, counted)]
    verdict = decide(Case(metrics_of(rows), {}))
    assert verdict.kind is leads
    assert {one.kind for one in (verdict.main, *verdict.also)} == {Class.HOST_BOUND} | (
        {Class.INPUT_BOUND} if wait else set()
    )


def test_an_evaluation_that_the_other_rank_waits_for_is_paid_by_both():
    """One rank evaluates every 50 steps; the other meets it in the backward pass of its next step."""
    rows, now = [], 1.0
    for step in range(400):
        for rank in range(2):
            evaluates = rank == 0 and step % 50 == 49
            waits = 0.6 if rank == 1 and step and step % 50 == 0 else 0.0
            rows += training(1, node=f"algo-1-{rank}", at=now - waits, number=step, backward=0.005 + waits)
            if evaluates:
                at = now + 0.0102
                rows += training(
                    30, node="algo-1-0", at=at, number=step, mode="EVAL", forward=0.018, backward=0, optimizer=0
                )
        now += 0.0102 + (0.6 if step % 50 == 49 else 0.0)
    case = Case(metrics_of(sorted(rows, key=lambda row: row[2])), {})
    assert case.in_step
    main = decide(case).main
    assert main.kind is Class.EVALUATION_BOUND
    assert main.gain.share_of_loop.value == pytest.approx(limits.SAVED[1] * 0.5, rel=0.1)  # and not a half of it
