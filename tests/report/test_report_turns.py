"""Ranks that delay each other in turn, from rows with uneven work or collections at different steps."""

import numpy as np
import pytest

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.profile.case import Case
from sm_profiler.diagnosis.profile.verdict import decide
from sm_profiler.report import Class
from tests.support.reports import in_step, jitter, metrics_of, training, verdict_of


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("part", ["forward", "wait"])
def test_finds_uneven_work(ranks, part):
    works = jitter(ranks)
    works[np.arange(200) % ranks, np.arange(200)] += 0.006
    main = verdict_of(in_step(works, part=part)).main
    assert main.kind is Class.MOVING_STRAGGLER
    assert ("forward pass" if part == "forward" else "waiting for data") in main.headline
    assert main.share_of_time == pytest.approx(0.006 / 0.0162, abs=0.08)
    assert main.confidence == "high"


def test_finds_sequences_of_random_length():
    works = np.random.default_rng(5).exponential(0.006, (4, 300)) + 0.002
    assert verdict_of(in_step(works, steps=300)).kind is Class.MOVING_STRAGGLER


def test_just_below_the_threshold_is_balanced():
    works = np.full((2, 200), 0.003)
    extra = (2 * limits.FLOOR + limits.REPEAT) * 0.0092 / (1 - (2 * limits.FLOOR + limits.REPEAT)) * 0.7
    works[np.arange(200) % 2, np.arange(200)] += extra
    assert verdict_of(in_step(works)).kind is Class.BALANCED


def test_a_rank_that_is_always_slow_is_a_straggler():
    works = jitter(4)
    works[2] += 0.01
    verdict = verdict_of(in_step(works))
    assert verdict.kind is Class.STRAGGLER
    assert Class.MOVING_STRAGGLER not in {finding.kind for finding in verdict.also}


def test_one_rank_that_is_slow_at_times_is_not_moving():
    works = jitter(4)
    works[1, ::3] += 0.01
    verdict = verdict_of(in_step(works))
    assert Class.MOVING_STRAGGLER not in {verdict.kind, *(finding.kind for finding in verdict.also)}


def test_a_rank_that_is_late_since_a_moment_is_not_moving():
    works = jitter(2, steps=400)
    works[1, 250:] += 0.02
    verdict = verdict_of(in_step(works, steps=400))
    assert Class.MOVING_STRAGGLER not in {verdict.kind, *(finding.kind for finding in verdict.also)}


def test_jitter_and_preempted_processes_are_balanced():
    works = jitter(8, spread=0.15)
    random = np.random.default_rng(7)
    works[random.integers(0, 8, 15), random.integers(0, 200, 15)] += 0.01
    verdict = verdict_of(in_step(works))
    assert Class.MOVING_STRAGGLER not in {verdict.kind, *(finding.kind for finding in verdict.also)}


def test_ranks_that_do_not_wait_for_each_other_are_not_compared():
    works, rows = jitter(2, spread=0.8), []
    for rank in range(2):
        now = 1.0
        for step in range(200):
            rows += training(1, node=f"algo-1-{rank}", at=now, number=step, forward=works[rank, step])
            now += 0.0072 + works[rank, step]
    assert verdict_of(rows).kind is Class.BALANCED


def collected(at, length=0.02, ranks=4, steps=200):
    """Return the collections of ranks that collect where `at(rank, step)` is true."""
    return np.asarray([[length if at(rank, step) else 0.0 for step in range(steps)] for rank in range(ranks)])


def test_finds_collections_at_different_steps():
    pauses = collected(lambda rank, step: step % 40 == 10 * rank + 5)
    main = verdict_of(in_step(np.full((4, 200), 0.003) + pauses, collections=pauses)).main
    assert main.kind is Class.GC_OUT_OF_PHASE
    assert main.share_of_time == pytest.approx(0.02 / (0.02 + 10 * 0.0102), abs=0.03)


def test_collections_at_the_same_step_are_in_phase():
    pauses = collected(lambda _rank, step: step % 20 == 5)
    verdict = verdict_of(in_step(np.full((4, 200), 0.003) + pauses, collections=pauses))
    assert verdict.kind is Class.GC_BOUND
    assert Class.GC_OUT_OF_PHASE not in {finding.kind for finding in verdict.also}


def test_rare_collections_at_different_steps_are_no_problem():
    pauses = collected(lambda rank, step: step == 40 * rank + 15, length=0.02)
    verdict = verdict_of(in_step(np.full((4, 200), 0.003) + pauses, collections=pauses))
    assert Class.GC_OUT_OF_PHASE not in {verdict.kind, *(finding.kind for finding in verdict.also)}


def test_steps_without_phases_do_not_hide_how_late_a_rank_is():
    """The hook times the phases of every third step only."""
    works = np.full((2, 300), 0.003)
    works[1] += 0.008
    rows = [row for row in in_step(works, steps=300) if row[0].startswith("Step") or row[5] % 3 == 0]
    main = verdict_of(rows).main
    assert main.kind is Class.STRAGGLER
    assert main.gain.seconds_per_step.value == pytest.approx(0.006, rel=0.05)  # left out, or divided


def test_the_first_steps_of_a_rank_do_not_make_it_late():
    works = np.full((2, 100), 0.003)
    works[1, :3] += 0.4
    assert verdict_of(in_step(works, steps=100)).kind is not Class.STRAGGLER


def with_fewer(batches, *, epochs=6, catches_up=False):
    """Return two ranks of which one has fewer batches an epoch, and waits at its end for the other one.

    Args:
        batches: of both in an epoch.
        epochs: their number.
        catches_up: the rank was late for another reason, and makes its steps after the other has ended.
    """
    rows, now = [], 1.0
    for epoch in range(epochs):
        for rank, count in enumerate(batches):
            rows += training(count, node=f"algo-1-{rank}", at=now, number=epoch * count)
        now += max(batches) * 0.0102 + 0.003
    if catches_up:
        missing = (max(batches) - min(batches)) * epochs
        rows += training(missing, node=f"algo-1-{np.argmin(batches)}", at=now, number=min(batches) * epochs)
    return sorted(rows, key=lambda row: row[2])


def test_ranks_that_wait_for_others_with_more_batches_have_unequal_steps():
    rows = with_fewer((120, 40))
    metrics = metrics_of(rows)
    verdict = decide(Case(metrics, {}))
    assert (verdict.kind, verdict.also) == (Class.UNEQUAL_STEPS, ())
    assert "algo-1-1 makes 240 steps and algo-1-0 720" in verdict.main.headline
    gain = verdict.main.gain.speedup
    assert gain.low < 720 / 480 < gain.high < 2
    assert verdict.main.ranks == ("algo-1-0",)
    assert not verdict.main.is_end


def test_a_rank_that_catches_up_has_as_many_steps():
    verdict = decide(Case(metrics_of(with_fewer((120, 40), catches_up=True)), {}))
    kinds = {verdict.kind, *(one.kind for one in verdict.also)}
    assert Class.UNEQUAL_STEPS not in kinds
