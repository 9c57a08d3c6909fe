"""Loops that become slow from a moment on, and loops that only look so."""

import re

import attrs
import numpy as np
import pytest

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.profile.case import Case
from sm_profiler.diagnosis.profile.patterns import find_change
from sm_profiler.diagnosis.profile.verdict import decide
from sm_profiler.formats import event_names
from sm_profiler.metrics.system_fold import Usage
from sm_profiler.report import Class
from tests.support.reports import JAX, START_S, cause_found, metrics_of, sampled, training, verdict_of

SEEDS = range(20)


def noisy(count, seed=0, spread=0.1):
    """Return lengths around 10 ms, with rare long ones."""
    random = np.random.default_rng(seed)
    lengths = np.abs(random.normal(0.01, spread * 0.01, count))
    lengths[random.random(count) < 0.03] *= 5
    return lengths


@pytest.mark.parametrize("count", [240, 400, 5_000])
@pytest.mark.parametrize("where", [0.25, 0.5, 0.75])
def test_finds_the_step(count, where):
    lengths, at = noisy(count), int(where * count)
    lengths[at:] *= 1.6
    change = find_change(lengths)
    assert abs(change.at - at) <= max(count // 60, 5)
    assert change.factor == pytest.approx(1.6, rel=0.1)
    assert not change.gradual


def test_finds_a_gradual_slowdown():
    lengths = noisy(600) * np.linspace(1, 3, 600)
    change = find_change(lengths)
    assert change.gradual
    assert change.before == pytest.approx(np.median(noisy(600)) * 1.1, rel=0.05)  # as at first
    assert change.lost(lengths).sum() / lengths.sum() == pytest.approx(0.5 - 0.05, abs=0.05)
    assert not find_change(noisy(600) * np.minimum(np.linspace(1, 5, 600), 2.5)).gradual  # it ends


def test_a_gradual_slowdown_saves_all_growth_of_what_grows():
    rows, now = [], 1.0
    for step in range(400):
        rows += training(1, at=now, number=step, forward=0.003, backward=0.005, outside=0.0002 + step * 5e-5)
        now = rows[-1][2] + rows[-1][3] + 0.0002 + step * 5e-5
    case = Case(metrics_of(rows), {})
    found = cause_found("FAIL_SLOW", case)
    grown = 5e-5 * 200 / (0.0102 + 5e-5 * 200)
    assert found.share_of_time == pytest.approx(grown, abs=0.05)
    gain = next(one for one in verdict_of(rows).findings if one.kind is Class.FAIL_SLOW).gain
    assert gain.share_of_loop.low < grown < gain.share_of_loop.high


@pytest.mark.parametrize(
    ("longest", "found"),
    [(1.0, True), (1.5, True), (2.0, False), (3.0, False)],
    ids=["same", "little", "square", "more"],
)
@pytest.mark.parametrize("gradual", [True, False])
def test_work_that_grows_with_its_inputs_is_no_slowdown(longest, found, gradual):
    course = np.linspace(0, 1, 400) if gradual else np.repeat([0.0, 1.0], 200)
    rows, now = [], 1.0
    for step, part in enumerate(course):
        times = {"forward": 0.003 * (1 + 2.5 * part), "backward": 0.006 * (1 + 2.5 * part)}
        rows += training(1, at=now, number=step, **times)
        now = rows[-1][2] + rows[-1][3]
    sizes = [(step, round(1000 * (1 + (longest - 1) * course[step]))) for step in range(0, 400, 8)]
    rank = {"node": "algo-1", "rank": 0, "input_sizes": sizes}
    assert (verdict_of(rows, metadata=(rank,)).kind is Class.FAIL_SLOW) == found


@pytest.mark.first(5)
@pytest.mark.parametrize("seed", SEEDS)
def test_noise_is_no_change(seed):
    assert find_change(noisy(500, seed, spread=0.3)) is None


@pytest.mark.first(5)
@pytest.mark.parametrize("seed", SEEDS)
def test_wandering_speed_is_no_change(seed):
    """Neighbouring steps of a busy machine resemble each other."""
    random = np.random.default_rng(seed)
    drift = np.zeros(600)
    for step in range(1, 600):
        drift[step] = 0.95 * drift[step - 1] + random.normal(0, 0.04)
    assert find_change(noisy(600, seed) * np.exp(drift)) is None


def test_stalls_faster_steps_and_short_ends_are_no_change():
    lengths = noisy(600)
    stalled, faster, end = lengths.copy(), lengths.copy(), lengths.copy()
    stalled[::20] += 0.3
    faster[300:] /= 2
    end[570:] *= 3
    assert [find_change(one) for one in (stalled, faster, end)] == [None, None, None]
    small = lengths.copy()
    small[300:] *= 0.95 * limits.SLOWER
    assert find_change(small) is None


def slower(part, extra, *, steps=400, at=200, node="algo-1-0", wait_for=None):  # one argument a part
    """Return a loop of which a part takes longer from a step on; `wait_for`: the extra time is spent waiting instead."""
    usual = {"wait": 0.001, "forward": 0.003, "backward": 0.005, "outside": 0.0002}
    rows = training(at, node=node, **usual)
    later = usual | {wait_for or part: usual[wait_for or part] + extra}
    return rows + training(steps - at, node=node, at=rows[-1][2] + rows[-1][3] + 0.0002, number=at, **later)


@pytest.mark.parametrize("part", ["wait", "forward", "outside"])
def test_names_moment_factor_and_part(part):
    main = verdict_of(slower(part, 0.01)).main
    assert main.kind is Class.FAIL_SLOW
    assert re.search(r"From about step (200|201) on", main.headline)
    evidence = {one.metric: one.value for one in main.evidence}
    assert evidence["times as long"] == pytest.approx(0.0202 / 0.0102, abs=0.05)
    assert main.share_of_time == pytest.approx(200 * 0.01 / (200 * 0.0102 + 200 * 0.0202), abs=0.02)


def test_names_the_rank_that_changed():
    rows = slower("forward", 0.01, node="algo-2-1")
    rows += slower("forward", 0.01, node="algo-1-0", wait_for="backward")
    rows += slower("forward", 0.01, node="algo-1-2", wait_for="backward")
    found = cause_found("FAIL_SLOW", Case(metrics_of(rows), {}))
    assert "by rank algo-2-1 alone" in found.headline
    everyone = [row for node in ("algo-1-0", "algo-1-1") for row in slower("forward", 0.01, node=node)]
    assert "on all ranks" in cause_found("FAIL_SLOW", Case(metrics_of(everyone), {})).headline


def test_the_line_and_the_part_are_those_of_the_rank_that_changed():
    rows = slower("forward", 0.01, node="algo-1-0", wait_for="backward") + slower("forward", 0.01, node="algo-1-1")
    for at, more in ((1.5, 0.0), (5.0, 2.0)):
        rows.append(sampled(("backward", False, 1.0 + more, 58), node="algo-1-0", at=at))
        rows.append(sampled(("forward", False, 1.0 + more, 39), node="algo-1-1", at=at))
    verdict = verdict_of(sorted(rows, key=lambda row: row[2]))
    assert verdict.kind is Class.FAIL_SLOW
    assert "in the forward pass, by rank algo-1-1 alone" in verdict.main.headline
    assert [(line.line, line.rank) for line in verdict.main.where] == [(39, "algo-1-1")]
    assert not verdict.also  # it is neither always late nor late in turn


def in_machine(
    others_before,
    others_after,
    factor,
    parts=("wait", "forward", "backward", "optimizer", "outside"),
    backward=0.005,
):
    """Return the finding of a loop on four cores of which others use some, before and after half of the steps."""
    usual = {"wait": 0.001, "forward": 0.003, "backward": backward, "optimizer": 0.001, "outside": 0.0002}
    rows = training(200, **usual)
    later = {part: (factor if part in parts else 1) * length for part, length in usual.items()}
    rows += training(200, at=rows[-1][2] + rows[-1][3] + 0.0002, number=200, **later)
    metrics = metrics_of(rows)
    change = metrics.ranks[0].iterations.start[200] - START_S
    end = int(metrics.end - START_S) + 1
    ticks = np.arange(1, end, 0.1)
    busy = np.where(ticks < change, 1 + others_before, 1 + others_after) / 4 * 100
    samples = [
        (at, use, "algo-1", "cpu", f"cpu{core}", "CPUUtilization")
        for at, use in zip(ticks, busy, strict=True)
        for core in range(4)
    ]
    usage = {"algo-1-0": Usage(ticks + START_S, ticks.copy(), np.zeros(len(ticks)))}
    return cause_found("FAIL_SLOW", Case(attrs.evolve(metrics_of(rows, samples), usage=usage), {}))


def test_names_others_that_use_the_cpu():
    found = in_machine(0.0, 3.0, 3.0)
    (others,) = [one for one in found.evidence if one.metric == "CPU cores that others use"]
    assert others.value > others.threshold + 1
    assert found.confidence != "high"


def test_a_shared_machine_needs_a_clear_slowdown():
    assert in_machine(0.0, 3.0, 1.6) is None
    assert in_machine(0.0, 3.0, 3.0, parts=("backward",)).kind is Class.FAIL_SLOW
    assert in_machine(0.0, 0.0, 2.5, parts=("backward",)).confidence == "high"


def test_a_busy_machine_does_not_hide_a_slowdown():
    random = np.random.default_rng(2)
    lengths = np.abs(random.normal(0.002, 0.0002, 600)) + np.where(
        random.random(600) < 0.35, random.exponential(0.006, 600), 0
    )
    assert find_change(lengths) is None
    lengths[300:] += 0.006
    assert abs(find_change(lengths).at - 300) <= 30


def test_shows_what_else_changed():
    rows = slower("wait", 0.02)
    metrics = metrics_of(rows)
    change = metrics.ranks[0].iterations.start[200] - START_S
    samples = [
        (at, 60.0 if at > change else 2.0, "algo-1", "cpu", "cpu0", "I/OWaitPercentage")
        for at in np.arange(1, metrics.end - START_S, 0.1)
    ]
    found = cause_found("FAIL_SLOW", Case(metrics_of(rows, samples), {}))
    assert any(one.metric == "I/O wait" and one.value > one.threshold for one in found.evidence)


def test_waits_for_a_core_are_no_slowdown_of_the_script():
    """The run queue shows that others use the cores."""
    rows = slower("forward", 0.006)
    metrics = metrics_of(rows)
    rank = metrics.ranks[0]
    ticks = np.arange(rank.start, rank.end + 0.1, 0.1)
    change = float(rank.iterations.start[200])

    def found(waiting):
        waited = np.maximum(ticks - change, 0.0) * waiting
        usage = {rank.name: Usage(ticks, ticks.copy(), np.zeros(len(ticks)), waited)}
        return Case(attrs.evolve(metrics, usage=usage), {})

    assert cause_found("FAIL_SLOW", found(0.0)).kind is Class.FAIL_SLOW
    assert cause_found("FAIL_SLOW", found(0.02)).kind is Class.FAIL_SLOW
    assert cause_found("FAIL_SLOW", found(0.35)) is None
    verdict = decide(found(0.35))
    assert (verdict.kind, verdict.main.confidence) == (Class.BALANCED, "low")
    assert any(one.metric == "time the main thread waits for a core" for one in verdict.main.evidence)
    assert decide(found(1.2)).main.confidence == "low"  # in half of the loop


@pytest.mark.parametrize(("waiting", "confident"), [(0.0, True), (0.24, False)])
def test_a_slowdown_is_less_certain_while_others_hold_the_core(waiting, confident):
    machine = [(at, 100.0, "algo-1", "cpu", core, "CPUUtilization") for at in range(1, 9) for core in ("cpu0", "cpu1")]
    metrics = metrics_of(slower("forward", 0.006), machine)
    rank = metrics.ranks[0]
    ticks = np.arange(rank.start, rank.end + 0.1, 0.1)
    usage = {rank.name: Usage(ticks, ticks * 0.7, np.zeros(len(ticks)), (ticks - ticks[0]) * waiting)}
    found = cause_found("FAIL_SLOW", Case(attrs.evolve(metrics, usage=usage), {}))
    assert (found.confidence == "high") is confident


def test_a_part_that_takes_most_of_a_step_grows_most_on_a_slower_machine():
    """That is no sign of a cause in that part."""
    parts = ("wait", "forward", "backward", "optimizer", "outside")
    assert in_machine(0.0, 3.0, 1.9, parts=parts, backward=0.02) is None
    assert in_machine(0.0, 0.0, 1.9, parts=parts, backward=0.02).kind is Class.FAIL_SLOW


def compiling_in_turn(after=0.058, every=4):
    """Return a loop of JAX that compiles every few steps of its first half: what the steps compute goes on meanwhile."""
    rows, now = [], 1.0
    for step in range(300):
        begin = now
        compiles = 1 <= step < 150 and step % every == 0
        now += 1.4 if compiles else 0.009 if step < 150 else after
        if compiles:
            args = {"compiler": "jax.jit", "again": step > 1, "file": "/x/train.py", "line": 35}
            rows.append((event_names.COMPILE, "step", begin, 1.38, "algo-1-0", step, args))
        rows.append((event_names.COMPILED_STEP, "step", begin, now - begin, "algo-1-0", step))
        rows.append(("Step:ModeKeys.TRAIN", "Step:ModeKeys.TRAIN", begin, now - begin, "algo-1-0", step))
    return rows


def test_steps_that_compute_behind_a_compilation_are_no_measure():
    """An epoch that compiles nothing "became" seven times as slow, with high confidence."""
    verdict = verdict_of(compiling_in_turn(), metadata=JAX)
    assert verdict.kind is Class.RECOMPILATION
    assert Class.FAIL_SLOW not in {one.kind for one in verdict.also}


def test_a_compilation_that_is_shorter_than_the_steps_before_it_hides_no_slowdown():
    found = verdict_of(compiling_in_turn(every=149, after=0.03), metadata=JAX)
    assert Class.FAIL_SLOW in {one.kind for one in (found.main, *found.also)}


@pytest.mark.parametrize(("later", "named"), [(0.005, False), (0.02, True)])
def test_only_lines_that_grew_since_a_slowdown_are_named(later, named):
    """A forward pass that takes as long as before is no reason, although samples show it."""
    rows, now = [], 1.0
    for step in range(600):
        slow = step >= 300
        rows += training(
            1, forward=later if slow else 0.005, backward=0.02 if slow and not named else 0.002, at=now, number=step
        )
        now += 0.007 + (0.018 if slow and not named else 0.0) + (later - 0.005 if slow else 0.0)
        if step % 100 == 99:
            rows.append(sampled(("forward", False, 100 * (later if slow else 0.005), 39), at=now - 0.3))
    found = verdict_of(rows).main
    assert found.kind is Class.FAIL_SLOW
    assert [line.line for line in found.where] == ([39] if named else [])
    assert any(one.metric.startswith("lines of the script that take longer") for one in found.evidence) is not named
