"""Long jobs keep a sample of their steps and exact sums of all of them, in any parts and within bounds."""

import random
from itertools import pairwise

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm_profiler.folding import Slice, SliceTree
from sm_profiler.formats.event_names import COMPILED_STEP, RESULTS
from sm_profiler.metrics import step_fold, step_sample
from sm_profiler.metrics.scaling import codec
from sm_profiler.metrics.step_fold import StepFold
from sm_profiler.metrics.step_sample import FIRST, LONGEST_STRETCH, sampled
from sm_profiler.report.report_json import report_json, to_json
from tests.support.reports import START_S, FakeWindow, events, metrics_of, report_from, system, training

NOTHING = system([])


@pytest.fixture
def small(monkeypatch):
    """Keep few steps, so that small jobs are long ones."""

    def limit(steps):
        for module, name in ((step_sample, "MAX_STEPS"), (step_fold, "MAX_STEPS"), (step_sample, "MIN_STEPS")):
            monkeypatch.setattr(module, name, steps if name == "MAX_STEPS" else 16)
        monkeypatch.setattr(step_sample, "LONGEST", 4)

    return limit


def fold_of(rows, edges):
    """Fold rows in windows that begin at some seconds."""
    fold, columns = StepFold(), events(rows)
    for start, end in pairwise(edges):
        chosen = (columns.start_us >= (START_S + start) * 1e6) & (columns.start_us < (START_S + end) * 1e6)
        fold.update(FakeWindow(int((START_S + start) * 1e6), columns[chosen], NOTHING))
    return fold


def same(one, other):
    """Compare the results of two folds: kept steps to the bit, sums up to the order of their terms."""
    assert one.steps.keys() == other.steps.keys()
    assert one.judged.keys() == other.judged.keys()
    for name, rows in one.steps.items():
        np.testing.assert_array_equal(rows.start, other.steps[name].start)
        np.testing.assert_array_equal(rows.number, other.steps[name].number)
    for name, found in one.judged.items():
        expected = other.judged[name]
        assert (found.steps, found.train, found.evaluated, found.breaks) == (
            expected.steps, expected.train, expected.evaluated, expected.breaks,
        )  # fmt: skip
        np.testing.assert_array_equal(found.index, expected.index)
        np.testing.assert_array_equal(found.rows.parts, expected.rows.parts)
        for field in attrs.fields(type(found.totals)):
            np.testing.assert_allclose(
                getattr(found.totals, field.name), getattr(expected.totals, field.name), rtol=1e-9, atol=1e-3
            )


def test_halvings_are_nested_and_even():
    moments = (START_S + np.arange(0, 86_400, 0.5)) * 1e6
    before, stretch = np.ones(len(moments), np.bool_), np.full(len(moments), LONGEST_STRETCH, np.int8)
    for level in range(1, 9):
        now = sampled(moments, stretch, level)
        assert not (now & ~before).any()
        assert now.mean() == pytest.approx(2.0**-level, rel=0.15)
        before = now
    quarters = np.array_split(sampled(moments, stretch, 4), 4)
    assert min(quarter.mean() for quarter in quarters) > 0.8 * max(quarter.mean() for quarter in quarters)


JOBS = st.fixed_dictionaries({
    "seed": st.integers(0, 2**32 - 1),
    "ranks": st.integers(1, 3),
    "lengths": st.lists(st.sampled_from([0.01, 0.3, 5.0]), min_size=1, max_size=4),  # of the steps of a stretch
    "numbers": st.sampled_from(["run on", "start again", "leap", "unknown"]),
    "gap": st.sampled_from([0.0, 40.0, 9_000.0]),
})  # fmt: skip


def job_rows(seed, ranks, lengths, numbers, gap):
    draw, rows = random.Random(seed), []  # made-up steps
    for rank in range(ranks):
        now, number = 1.0, 0
        for length in lengths:
            now, number = now + gap, {"start again": 0, "leap": number + 10**12}.get(numbers, number)
            for _ in range(draw.randrange(20, 160) * (1 + 5 * (rank == 2))):
                mode = "EVAL" if draw.random() < 0.1 else "TRAIN"
                shown = -1 if numbers == "unknown" else number
                name, took = f"algo-1-{rank}", length * draw.uniform(0.5, 1.5)
                rows.append(("DataLoaderWait", "DataLoaderWait", now, took / 8, name, shown))
                rows.append(("Forward", "Forward", now + took / 4, took / 4, name, shown))
                step = f"Step:ModeKeys.{mode}"
                rows.append((step, step, now + took / 4, took / 2, name, shown))
                now, number = now + took, number + 1
    return rows


@settings(deadline=None, max_examples=12)
@given(job=JOBS, cuts=st.lists(st.floats(0, 1), max_size=6), limit=st.sampled_from([32, 128, 512]), order=st.randoms())
def test_the_sample_does_not_depend_on_the_parts_of_a_job(job, cuts, limit, order):
    with pytest.MonkeyPatch.context() as patch:
        for module in (step_sample, step_fold):
            patch.setattr(module, "MAX_STEPS", limit)
        patch.setattr(step_sample, "MIN_STEPS", 16)
        rows = job_rows(**job)
        last = max(row[2] for row in rows) + 1
        width = max(last / 200, 1.0)
        edges = np.append(np.arange(0, last, width), last)
        whole = fold_of(rows, edges).result()
        places = sorted({0, len(edges) - 1, *(int(cut * (len(edges) - 1)) for cut in cuts)})
        parts = [(number, edges[a : b + 1]) for number, (a, b) in enumerate(pairwise(places))]
        order.shuffle(parts)
        trees = [SliceTree(), SliceTree()]
        for tree, each in zip(trees, (parts, sorted(parts, key=lambda part: part[0])), strict=True):
            for number, own in each:
                tree.add(0, number, Slice([fold_of(rows, own)]))
        merged, again = (tree.whole().folds[0].result() for tree in trees)
        same(merged, whole)
        same(merged, again)
        for name, found in merged.judged.items():  # to the bit in any order of arrival
            assert all(
                np.array_equal(getattr(found.totals, field.name), getattr(again.judged[name].totals, field.name))
                for field in attrs.fields(type(found.totals))
            )


def long_job(ranks=2):
    rows = []
    for rank in range(ranks):
        for epoch in range(30):
            at, node = 1 + 40.0 * epoch, f"algo-1-{rank}"
            rows += training(3000 // 30, wait=0.01, forward=0.1, backward=0.2, at=at, node=node, number=100 * epoch)
            rows += training(20, backward=0, optimizer=0, at=at + 36, node=node, mode="EVAL", number=20 * epoch)
    return rows


def test_sums_and_counts_are_those_of_all_steps(small):
    rows = long_job()
    exact = metrics_of(rows)
    small(1000)
    found = metrics_of(rows)
    for one, other in zip(found.ranks, exact.ranks, strict=True):
        assert one.judged is not None
        assert other.judged is None
        assert 200 < len(one.steps) < 700
        assert (one.train_steps, one.all_steps) == (3000, 3600)
        assert one.seconds == pytest.approx(other.seconds, rel=1e-6, abs=1e-6)
        assert one.waits_seen == other.waits_seen
        assert one.loop == pytest.approx(other.loop)
        assert np.median(one.iterations.length) == pytest.approx(np.median(other.iterations.length), rel=1e-6)
    job = report_json(report_from(rows)).job
    assert all(rank.judged_steps < 700 for rank in job.ranks)
    assert [(rank.train_steps, rank.eval_steps) for rank in job.ranks] == [(3000, 600)] * 2
    assert found.steps_per_second == pytest.approx(exact.steps_per_second)


def test_a_report_states_how_many_steps_it_judges(small):
    rows = long_job()
    assert report_from(rows).quality.collectors == ()
    small(1000)
    (line,) = report_from(rows).quality.collectors
    assert line.endswith("of 7,200 steps; sums are of all steps")


def test_a_periodic_stall_is_found_in_the_sample(small):
    rows = training(6000, wait=0.01, forward=0.05, backward=0.05, every=25, stall=2.0)
    exact = report_from(rows)
    small(1500)
    found = report_from(rows)
    assert found.metrics.ranks[0].judged is not None
    assert found.verdict.kind is exact.verdict.kind
    assert found.metrics.ranks[0].stalls.period == exact.metrics.ranks[0].stalls.period == 25
    assert found.metrics.ranks[0].stall_share == pytest.approx(exact.metrics.ranks[0].stall_share, rel=0.1)
    saved, expected = (one.verdict.main.gain.seconds.value for one in (found, exact))
    assert saved == pytest.approx(expected, rel=0.15)


def test_an_interruption_is_found_in_the_sample(small):
    rows = [*training(2000, at=1.0, forward=0.05), *training(2000, at=700.0, forward=0.05)]  # from 0 again
    metadata = [
        {"node": "algo-1", "rank": 0, "pid": 1, "start_us": int((START_S + second) * 1e6)} for second in (0, 699)
    ]
    exact = metrics_of(rows, metadata=metadata)
    small(500)
    found = metrics_of(rows, metadata=metadata)
    assert found.ranks[0].judged is not None
    assert found.interruptions == (1, pytest.approx(exact.interruptions[1]))
    assert found.ranks[0].seconds == pytest.approx(exact.ranks[0].seconds, rel=1e-6, abs=1e-6)


def test_results_that_are_read_rarely_are_divided_within_the_sample(small):
    rows = []
    for step in range(4000):
        at = 1 + 0.1 * step
        rows.append(("Step:ModeKeys.TRAIN", "Step:ModeKeys.TRAIN", at, 0.01, "algo-1-0", step))
        rows.append((COMPILED_STEP, "step", at, 0.005, "algo-1-0", step))
        if step % 20 == 19:
            rows.append((RESULTS, "read", at + 0.01, 0.08, "algo-1-0", step))
    exact = metrics_of(rows).ranks[0]
    small(800)
    found = metrics_of(rows).ranks[0]
    assert found.judged is not None
    assert np.median(found.steps.duration) == pytest.approx(np.median(exact.steps.duration))


def test_a_rank_with_far_more_steps_leaves_the_others_theirs(small):
    small(1200)
    busy = training(9000, wait=0, forward=0.001, backward=0.001, optimizer=0, node="algo-1-2")
    others = [row for rank in (0, 1) for row in training(200, forward=0.1, node=f"algo-1-{rank}")]
    found = metrics_of([*busy, *others]).ranks
    assert [rank.judged is None for rank in found] == [True, True, False]
    assert [rank.train_steps for rank in found] == [200, 200, 9000]
    assert len(found[2].steps) <= 400 + FIRST + 1


def test_the_state_is_bounded(small):
    small(2000)
    sizes = []
    for steps in (20_000, 80_000):
        at = START_S + np.arange(steps) * 0.05
        fold = StepFold()
        for rows in np.array_split(np.arange(steps), steps // 500):
            one = events([("Step:ModeKeys.TRAIN", "Step:ModeKeys.TRAIN", 0, 0.04, "algo-1-0", 0)])
            many = one[np.zeros(len(rows), np.int64)]
            many = attrs.evolve(many, start_us=at[rows] * 1e6, step=rows)
            fold.update(FakeWindow(int(at[rows[0]] * 1e6), many, NOTHING))
            assert fold._held <= 4000
        sizes.append(len(codec.encode(dict(vars(fold)))))
        assert fold.result().judged["algo-1-0"].steps == steps
    assert max(sizes) < 300_000


def test_short_jobs_are_not_sampled():
    report = report_from(long_job())
    assert all(rank.judged is None for rank in report.metrics.ranks)
    assert "judged_steps" not in to_json(report)
