"""Causes of lost time: how each is recognized, what its repair changes, and the words for it.

A new cause is a row of `CAUSES`. It names a function that recognizes it and repairs the steps, and its texts. No cause
refers to another: which leads, and what is left of the others, follows from replaying the repaired steps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import attrs
import numpy as np

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.ledger import MEETING, UNKNOWN, UNSEEN, Ledger
from sm_profiler.diagnosis.model import Evidence
from sm_profiler.diagnosis.table.naming import is_pass
from sm_profiler.diagnosis.table.patterns import Stretch, agreement_of, goes_on_growing, long_steps, period_of, relative
from sm_profiler.diagnosis.table.whatif import Steps
from sm_profiler.diagnosis.words import ADVICE
from sm_profiler.formats.columns import Floats, Ints, Mask
from sm_profiler.formatting import percent, plural
from sm_profiler.metrics import thresholds

# Activities that are causes by themselves.
NAMED = ("saving", "evaluation", "logging", "garbage collection")
MAX_NAMES = 8  # of a list
_HALF = (1 / 2, 1 / 2, 1 / 2)  # half as many evaluations


@attrs.frozen(eq=False)
class Repair:
    """A recognized cause, and the steps without it.

    Attributes:
        after: the repaired steps.
        least, most: the steps if the repair works less well, or better, than expected; None if it cannot.
        words: values for the cause's texts.
        evidence: numbers behind it, the strongest first.
        ranks: names of the ranks that cause it; empty if all do.
        stage: name of the stage that causes it; "" if none does.
        steps: the steps it happens in, if they are a stretch of the recording.
        certain: what it cost these steps was recorded, or comes regularly, so chance would not have made it less.
    """

    after: Steps
    least: Steps | None = None
    words: Mapping[str, object] = attrs.field(factory=dict)
    evidence: tuple[Evidence, ...] = ()
    ranks: tuple[str, ...] = ()
    stage: str = ""
    steps: Mask | None = None
    most: Steps | None = None
    certain: bool = False


@attrs.frozen
class Cause:
    """A row of the table of causes: its class, how to find it, its texts."""

    kind: str
    repair: Callable[[Steps, Ledger], Repair | None]
    headline: str
    advice: str


def activity(
    before: Steps,
    ledger: Ledger,
    *,
    name: str,
    saved: tuple[float, float, float] = (1.0, 1.0, 1.0),
    common: bool = False,
) -> Repair | None:
    """Repair an activity that training can do without, or with less of it.

    Args:
        before: the steps.
        ledger: the ledger.
        name: the activity.
        saved: share of its time that the repair saves: at least, usually and at most.
        common: repair what most ranks spend on it; a rank that always spends more is late.
    """
    rows = before.graph.named(name)
    spent = before.seconds[rows]
    if not spent.any():
        return None
    mine = before.spent(rows & before.graph.local)
    waited = mine.max(axis=0) - mine  # those that do not save or evaluate wait for the rank that does
    unseen = before.graph.named(UNSEEN)
    part_of = np.ones((len(spent), 1))
    if common:
        mean = mine.mean(axis=1)
        usual_of = np.sort(mean)[(len(mean) - 1) // 2] / np.where(mean > 0, mean, 1.0)
        part_of = np.minimum(usual_of, 1.0)[before.graph.ranks[rows]][:, None]

    def without(part: float) -> Steps:
        seconds = before.seconds.copy()
        seconds[rows] = spent * np.maximum(1 - part * part_of, 0.0)
        seconds[unseen] = np.maximum(seconds[unseen] - part * waited[before.graph.ranks[unseen]], 0.0)
        return before.repaired(seconds)

    share, each = ledger.totals.share(name), spent.sum(axis=0)
    steps_with, period = int((each > 0).sum()), period_of(each)
    when = f", every {period} steps" if period else f", in {steps_with} steps" if steps_with < len(each) else ""
    evidence = (
        Evidence(f"time of the ranks in {name}", share, unit="share"),
        Evidence(f"steps with {name}", f"{steps_with:,} of {len(each):,}"),
    )
    least, usual, most = (without(part) for part in saved)
    return Repair(
        usual, least, {"share": share, "percent": percent(share), "when": when}, evidence, most=most, certain=True
    )


def slow_ranks(before: Steps, ledger: Ledger) -> Repair | None:
    """Repair the ranks that take longer than their peers for the same work, in all steps."""
    ratio = before.fair.ratio
    factors = np.median(ratio, axis=1)
    if len(before.stages) > 1:  # the only rank of a stage has no peers: its work may be longer
        factors[np.bincount(before.stage_of + 1)[before.stage_of + 1] == 1] = 1.0
    order = np.argsort(-factors, kind="stable")[: len(factors) // 2]
    order = order[factors[order] * (1 - limits.FLOOR) >= 1]  # of the others, not even waiting for them costs enough
    if not len(order):
        return None

    def repaired(ranks: Ints, times: Floats) -> Steps:
        scale = np.ones(np.broadcast_shapes(times.shape, (len(factors), 1)))
        scale[ranks] = np.minimum(1 / np.maximum(times[ranks], 1e-12), 1.0)
        return before.scaled(scale)

    def saved(count: int) -> float:
        return before.saved(repaired(order[:count], factors[:, None]))

    count = 1 + bisect_left(range(1, len(order)), limits.MOST * saved(len(order)), key=saved)
    slow = order[:count]
    names = tuple(before.ranks[rank] for rank in sorted(slow.tolist()))
    evidence = (
        *_times("time for its own work, compared with its peers", factors, slow, before.ranks),
        _waiting(ledger),
        *_explained(before),
    )
    slowest = max(float(np.delete(factors, slow).max()), 1.0)  # of the others; the repaired ranks may be as slow
    least = repaired(slow, factors[:, None] / slowest)
    where = _late_in(before, np.broadcast_to(slow[0], before.local.shape[1]))
    words = {"factor": float(factors[slow].mean()), **_longer(where)}
    return Repair(repaired(slow, ratio), least, words, evidence, names)


def slow_since(before: Steps, ledger: Ledger) -> Repair | None:
    """Repair ranks that become slower at some step, for a while or until the end."""
    found = before.stretches
    if not found:
        return None
    lead = max(found.values(), key=lambda one: (one.factor - 1) * (one.last - one.first))
    together = {rank: one for rank, one in found.items() if one.overlap(lead) >= limits.MAJORITY}
    # neighbouring steps resemble each other, so that any rank is a little slower for a while
    found = {rank: one for rank, one in together.items() if one.factor - 1 >= limits.USUAL * (lead.factor - 1)}
    scale, least = np.ones((2, *before.local.shape))
    steps, factors = np.zeros(before.local.shape[1], np.bool_), np.ones(len(before.ranks))
    for rank, one in found.items():
        steps[one.first : one.last], factors[rank] = True, one.factor
        scale[rank, one.first : one.last] /= one.factor
        least[rank, one.first : one.last] /= 1 + (one.factor - 1) * limits.MOST
    names, after = tuple(before.ranks[rank] for rank in found), before.scaled(scale)
    words = _since(before, steps, lead) | {"factor": float(factors[list(found)].mean())}
    metric = "its own work in these steps, compared with the others"
    evidence = _times(metric, factors, np.argsort(-factors, kind="stable")[: len(found)], before.ranks)
    return Repair(after, before.scaled(least), words, evidence, names, steps=steps)


def _since(before: Steps, steps: Mask, stretch: Stretch) -> dict[str, object]:
    """Return the words for when steps are slow."""
    first, last = (int(before.graph.steps[steps][at]) for at in (0, -1))
    when = f"Since step {first}" if stretch.open else f"From step {first} to {last}"
    return {"first": first, "When": when}


def all_slow(before: Steps, ledger: Ledger, *, growing: bool) -> Repair | None:
    """Repair what makes all ranks slower at once, which no comparison among them can show: since a step, or more and more."""
    length, stretch = before.length_for_work, before.slowdown
    if stretch is None or goes_on_growing(length, stretch) != growing:
        return None
    steps = np.zeros(len(length), np.bool_)
    steps[stretch.first : stretch.last] = True
    of_work = length / np.where(before.length > 0, before.length, 1.0)
    of_rank = before.local * of_work
    grown_by = np.median(of_rank[:, steps], axis=1) / np.maximum(np.median(of_rank[:, ~steps], axis=1), 1e-12)
    slower = float((grown_by >= 1 + limits.MAJORITY * (stretch.factor - 1)).mean())
    if 0 < slower <= limits.MAJORITY:
        return None  # some ranks are, and the others wait for them
    fast, much = ~steps, steps.astype(np.float64)
    if growing:
        edge = max(len(length) // limits.STRETCHES, 1)
        rows = np.arange(len(length))
        fast, steps = rows < edge, rows >= len(length) - edge
        much = np.clip((rows - edge / 2) / (len(length) - edge), 0.0, 1.0)
    of_work = before.seconds * of_work  # each operation becomes as long as in the other steps
    slow, usual = (np.median(of_work[:, rows], axis=1) for rows in (steps, fast))
    factors = np.maximum(slow / np.where(usual > 0, usual, np.inf), 1.0)
    part, least = (1 / (1 + np.outer((factors - 1) * kept, much)) for kept in (1.0, limits.MOST))
    after = before.repaired(before.seconds * part)
    if before.saved(after) < limits.FLOOR:
        return None  # any job is slower for a while; a rank that is slower than the others is about to fail
    factor = float(np.median(length[steps]) / np.median(length[fast])) if growing else stretch.factor
    words = (
        _since(before, steps, stretch) | {"factor": factor} | _longer(_mostly(before, np.maximum(slow - usual, 0.0)))
    )
    metric = "the last steps" if growing else "a step in this time"
    evidence = Evidence(
        f"{metric}, compared with the {'first' if growing else 'others'}", factor, 1.0, unit="times", held="usually"
    )
    least_saved = before.repaired(before.seconds * least)
    return Repair(after, least_saved, words, (evidence,), steps=None if growing else steps)


def uneven_microbatches(before: Steps, ledger: Ledger) -> Repair | None:
    """Repair microbatches of unequal cost: forward and backward agree on which of them are long, on every rank."""
    agreement, spent = before.microbatches
    if agreement < limits.TOGETHER or before.saved(before.fair) < limits.FLOOR + before.jitter:
        return None
    longest = float(np.quantile(spent, (1 + limits.INTERVAL) / 2) / spent.mean())
    evidence = (
        Evidence("agreement of forward and backward on which microbatches are long", agreement, unit="correlation"),
        Evidence("longest of 20 microbatches, compared with the mean", longest, 1.0, unit="times", held="usually"),
        _waiting(ledger),
    )
    return Repair(before.fair, None, {"agreement": agreement}, evidence)


def uneven_work(before: Steps, ledger: Ledger) -> Repair | None:
    """Repair work that is divided unevenly, as a column of the table counts it: tokens, samples."""
    work = before.work
    if work is None or before.microbatches[0] >= limits.TOGETHER:
        return None
    more = np.median(relative(work.values, before.stage_of), axis=1)
    most = np.flatnonzero(more >= 1 + limits.FAR)
    most = most if len(most) <= len(more) // 2 else most[:0]
    names = tuple(before.ranks[rank] for rank in most.tolist())
    evidence = (
        Evidence(f"the ranks' work goes with the column {work.column}", work.agreement, unit="correlation"),
        *_times(f"{work.column}, compared with its peers", more, most, before.ranks),
        _waiting(ledger),
    )
    uneven = "the ranks with more of it change from step to step, and all others wait for them"
    if names:
        has = f"{listed(names)} ha{'ve' if len(names) > 1 else 's'}"
        uneven = f"{has} {float(more[most].mean()):.3g} times as much as the others, which wait"
    return Repair(before.fair, None, {"column": work.column, "uneven": uneven}, evidence, names)


def padding(before: Steps, ledger: Ledger) -> Repair | None:
    """Take the padding out of batches: what the passes compute on it is not computed, attention least of all."""
    part = before.facts.get("padding")
    if part is None or not 0 <= part.min() <= part.max() <= 1:
        return None
    seconds, rows = before.seconds.copy(), before.passes
    seconds[rows] *= 1 - part[before.graph.ranks[rows]]
    least = before.seconds - limits.MAJORITY * (before.seconds - seconds)  # lengths of a bucket still differ
    evidence = (Evidence("tokens that are padding", float(part.mean()), unit="share"),)
    return Repair(
        before.repaired(seconds),
        before.repaired(least),
        {"percent": percent(float(part.mean()))},
        evidence,
        certain=True,
    )


def uneven_stages(before: Steps, ledger: Ledger) -> Repair | None:
    """Repair pipeline stages of unequal cost: layers move from the expensive ones to the others."""
    if len(before.stages) < 2:
        return None
    graph, seconds, ratio = before.graph, before.seconds.copy(), np.ones(len(before.stages))
    computes = before.passes if before.passes.any() else graph.local
    for name in graph.names.values:
        rows = np.flatnonzero(graph.names.mask(name) & computes & (graph.stages >= 0))
        of, spent = graph.stages[rows], before.seconds[rows].mean(axis=1)
        means = np.bincount(of, spent, len(ratio)) / np.maximum(np.bincount(of, minlength=len(ratio)), 1)
        if means.any():
            usual = float(means[np.unique(of)].mean())
            seconds[rows] *= (usual / np.where(means > 0, means, usual))[of][:, None]
            ratio = np.maximum(ratio, means / usual)
    order = np.argsort(-ratio, kind="stable")
    stages = [f"stage {name}" for name in before.stages]
    evidence = _times("computation, compared with the mean stage", ratio, order, stages)
    worst = before.stages[int(order[0])]
    words = {"factor": float(ratio[order[0]]), "stage": worst}
    return Repair(attrs.evolve(before, seconds=seconds), None, words, evidence, (), worst)


def rare_steps(before: Steps, ledger: Ledger, *, regular: bool) -> Repair | None:
    """Repair a few steps that take much longer than the others, at regular intervals or not."""
    length = before.length_for_work
    long = long_steps(length)
    period = period_of(np.where(long, length - np.median(length), 0.0))
    if not long.any() or (period is not None) != regular or not np.median(length[~long]) > 0:
        return None
    usual = np.median(before.seconds[:, ~long], axis=1)
    more = np.maximum(before.seconds[:, long] - usual[:, None], 0.0)
    more[before.graph.activities.mask(lambda name: name in NAMED)] = 0.0  # these are causes by themselves
    seconds = before.seconds.copy()
    seconds[:, long] -= more
    # of many ranks, the slowest of each step is later than usual: no step becomes shorter than the others are
    saved = before.length[long] - before.repaired(seconds).length[long]
    beyond = before.length[long] - np.median(before.length[~long])
    seconds[:, long] += more * (1 - np.clip(beyond / np.maximum(saved, 1e-12), 0.0, 1.0))
    most, names = _mostly(before, more.mean(axis=1)), _alone_in(before, long)
    if names and not regular and long.mean() > thresholds.RARE:
        return None  # the rank is late now and then
    find = "Find what the loop does every {}: saving, evaluating, logging, or collecting garbage."
    if most:
        find = f"Find out why {most} takes longer every {{}}; do that less often, faster, or in the background."
    longest = int(length.argmax())
    words = {
        "count": plural(int(long.sum()), "step"),
        "take": "takes" if long.sum() == 1 else "take",
        "period": period,
        "factor": float(np.median(length[long]) / np.median(length[~long])),
        "mostly": (f", most of it in {most}" if most else "") + "".join(f", of rank {name} alone" for name in names),
        "find": find.format(plural(period or 0, "step")),
        "what": f"{most} in those steps" if most else "those steps",
    }
    evidence = (
        Evidence("the longest step", float(length[longest]), float(np.median(length)), f"step {before.graph.steps[longest]}", "s", "usually"),
        *((Evidence("what grows most in them", most),) if most else ()),
    )  # fmt: skip
    after = before.repaired(seconds)
    return Repair(after, None, words, evidence, names, most=after if regular else None, certain=regular)


def _alone_in(before: Steps, long: Mask) -> tuple[str, ...]:
    """Return the name of the rank that alone works longer in nearly all of some steps; nothing if several do."""
    usual = np.median(before.local[:, ~long], axis=1, keepdims=True)
    late = before.local[:, long] > thresholds.LONG_STEP * usual
    first = int(late.sum(axis=1).argmax())
    only = late[first] & (late.sum(axis=0) == 1)
    return (before.ranks[first],) if len(late) > 1 and only.mean() >= limits.MOST else ()


def _mostly(before: Steps, more: Floats) -> str:
    """Return the activity that most of the growth is in, given it by node; "" if it has no name.

    The rank counts on which most of the growth has a name: the others wait for it.
    """
    kinds, ranks, count = before.graph.activities, before.graph.ranks, len(before.ranks)
    codes = kinds.codes
    met, width = ranks < 0, len(kinds.values)
    grown = np.bincount(ranks[~met] * width + codes[~met], more[~met], count * width).reshape(count, width)
    grown += np.bincount(codes[met], more[met], width)
    named = [name not in UNKNOWN for name in kinds.values]
    of_rank = grown[int(grown[:, named].sum(axis=1).argmax())]
    most = int(of_rank.argmax())
    return kinds.values[most] if named[most] and of_rank[most] >= limits.MAJORITY * of_rank.sum() else ""


def late_ranks(before: Steps, ledger: Ledger, *, single: bool) -> Repair | None:
    """Repair steps in which the ranks wait for a late one: the same now and then, or another each time."""
    count = len(before.ranks)
    if count < 2:
        return None
    late, gone = before.lateness, before.on_time
    lost = np.maximum(before.length - gone.length, 0.0)
    rows = lost <= np.quantile(lost, limits.MOST)  # rare long steps are another cause
    if lost.sum() <= 0 or lost[rows].sum() < limits.FLOOR * before.length[rows].sum():
        return None
    last = late.argmax(axis=0)
    causes = np.bincount(last, lost, count) / lost.sum()
    most = int(causes.argmax())
    if (causes[most] > 1 / count + limits.MAJORITY * (1 - 1 / count)) != single:
        return None
    where = _late_in(before, last)
    changes = float((np.diff(last) != 0).mean())
    evidence = (
        Evidence("time lost to the rank that is late most often", float(causes[most]), 1 / count, rank_name(before.ranks[most]), "share", "usually"),
        *(() if single else (Evidence("steps in which another rank is late than in the step before", changes, unit="share"),)),
        _waiting(ledger),
        *_explained(before),
    )  # fmt: skip
    words = {
        **_longer(where),
        "percent": percent(float((late[most] >= 1 + limits.FLOOR).mean())),
    }
    if where == "data wait":
        words["look"] = "Load ahead, so that a slow batch hides behind others: more workers, more prefetching. "
    spread = before.working(gone.local + before.by_stage(before.local - gone.local))
    return Repair(gone, spread, words, evidence, (before.ranks[most],) if single else ())


def _late_in(before: Steps, last: Ints) -> str:
    """Return the activity in which the late rank of each step exceeds the median of all ranks most; "" if it has no name."""

    def beyond(name: str) -> float:
        spent = before.spent(before.graph.activities.mask(name) & before.graph.local)
        return float((spent[last, np.arange(len(last))] - np.median(spent, axis=0)).sum())

    names = before.graph.activities.values
    found = max(sorted(names), key=beyond) if len(names) > 1 else names[0]
    return "" if found in UNKNOWN else found


def _longer(where: str) -> dict[str, object]:
    """Return the words for the activity that late ranks or slow steps spend more time in; "" if it has no name."""
    look = "" if not where or is_pass(where) else f"Look first at {where}, which takes longer there. "
    return {"mostly": f"; what takes longer is mostly {where}" if where else "", "look": look}


def rank_name(name: str) -> str:
    """Return a rank as evidence names it: `rank 3`, `node1-gpu2`."""
    return f"rank {name}" if name.isdigit() else name


def _times(metric: str, factors: Floats, places: Ints, names: Sequence[str]) -> tuple[Evidence, ...]:
    """Return how many times as long, or as much, the first of some ranks or stages take."""
    return tuple(
        Evidence(metric, float(factors[at]), 1.0, rank_name(names[at]), "times", "usually")
        for at in places[:3].tolist()
    )


def _waiting(ledger: Ledger) -> Evidence:
    """Return how much the ranks wait for each other, or that it is an assumption."""
    name = "waiting for other ranks"
    if ledger.operations is None:
        return Evidence(name, "not recorded; a step is taken to end with its slowest rank")
    return Evidence(f"{name}, of all ranks' time", ledger.totals.share(MEETING), unit="share")


def _explained(before: Steps) -> tuple[Evidence, ...]:
    """Return further columns of the table that go with what the ranks' own work takes, on average or step by step."""
    found, local = [], before.local
    for name, values in before.facts.items():
        means, spent = values.mean(axis=1), local.mean(axis=1)
        correlation = agreement_of(values, local, np.arange(len(local)))
        if len(means) > 2 and np.ptp(means) > 0 and np.ptp(spent) > 0:
            correlation = max(float(np.corrcoef(means, spent)[0, 1]), correlation, key=abs)
        if abs(correlation) >= limits.TOGETHER:
            metric = f"the ranks' work goes with the column {name}"
            found.append((abs(correlation), Evidence(metric, correlation, unit="correlation")))
    return tuple(evidence for _, evidence in sorted(found, key=lambda pair: -pair[0])[:2])


def listed(names: Sequence[str]) -> str:
    """Return ranks as text; of many, some."""
    shown = [*names[:MAX_NAMES], *([f"{len(names) - MAX_NAMES} more"] if len(names) > MAX_NAMES else [])]
    return f"rank{'s' * (len(names) > 1)} {' and '.join([', '.join(shown[:-1]), shown[-1]] if shown[1:] else shown)}"


CAUSES: Sequence[Cause] = (
    Cause(
        "STRAGGLER", slow_ranks,
        "{Ranks} {take} {factor:.3g} times as long as {their} peers, and all other ranks wait{mostly}.",
        "{look}Compare the machine of {ranks} with the others: GPU clocks and temperature, memory errors, other processes. Swap it "
        "for another and run again. If the same rank numbers stay slow, look for work or data that only they have.",
    ),
    Cause(
        "FAIL_SLOW", slow_since,
        "{When}, {ranks} took {factor:.3g} times as long as in the other steps, and the others waited.",
        "Find out what happened at step {first}: other jobs on the machine, GPU clocks, the network, the data of those steps. "
        "If it is still slow, move {ranks} to another machine.",
    ),
    Cause(
        "FAIL_SLOW", partial(all_slow, growing=False),
        "{When}, {ranks} took {factor:.3g} times as long as in the other steps{mostly}.",
        "Find out what happened at step {first}: other jobs on the machine, GPU clocks, the network, the data of those steps.",
    ),
    Cause(
        "FAIL_SLOW", partial(all_slow, growing=True),
        "The steps take longer and longer: the last ones take {factor:.3g} times as long as the first{mostly}.",
        ADVICE["slowdown_slower"],
    ),
    Cause(
        "SEQUENCE_IMBALANCE", uneven_microbatches,
        "Microbatches take unequal time, and forward and backward agree on which are long: the sequences are divided "
        "unevenly, and ranks wait for the longest.",
        "Give each rank the same cost, not the same number of sequences: sort by length and deal them out, or pack them so "
        "that the sum of squared lengths is even.",
    ),
    Cause(
        "SEQUENCE_IMBALANCE", uneven_work,
        "The ranks' work follows the column {column}, which is divided unevenly: {uneven}.",
        "Divide {column} evenly among the ranks of each step: sort the samples by size and deal them out, "
        "or pack them to the same {column} for each rank.",
    ),
    Cause(
        "STRAGGLER", partial(late_ranks, single=True),
        "{Ranks} {take} longer than usual in {percent} of the steps, and all other ranks wait{mostly}.",
        "{look}Find what stops {ranks} now and then: other processes on the machine, garbage collection, slow reads, logging or "
        "metrics that no other rank has.",
    ),
    Cause(
        "MOVING_STRAGGLER", partial(late_ranks, single=False),
        "The late rank changes from step to step, and all others wait for it{mostly}.",
        "{look}If their data differ in size, give all ranks equal work in each step, and add a column with it (tokens, samples) to "
        "confirm it. If not, look for what stops a rank now and then: other processes, garbage collection, slow reads.",
    ),
    Cause(
        "PADDING_WASTE", padding,
        "{percent} of the tokens that the passes compute on are padding.",
        "Batch sequences of similar length, or pack several into one row with a mask between them, so that less is padded.",
    ),
    Cause(
        "STAGE_IMBALANCE", uneven_stages,
        "Pipeline stage {stage} computes {factor:.3g} times as long as the average stage, and the others wait for it.",
        "Move layers from stage {stage} to the other stages. The embedding and the loss count as layers, too.",
    ),
    Cause(
        "PERIODIC_STALL", partial(rare_steps, regular=True),
        "Every {period} steps, a step takes {factor:.3g} times as long as the others{mostly}.",
        "{find}",
    ),
    Cause(
        "STEP_OUTLIERS", partial(rare_steps, regular=False),
        "{count} {take} {factor:.3g} times as long as the others, at no regular interval{mostly}.",
        "Compare {what} with the others: their data, other jobs on the machine, the network.",
    ),
    Cause(
        "INPUT_BOUND", partial(activity, name="data wait", saved=limits.KERNELS_SAVED["INPUT_BOUND"], common=True),
        "Waiting for data takes {percent} of the time.",
        "Load ahead: more workers, prefetching, cheaper decoding; or prepare the data once and store it.",
    ),
    Cause(
        "CHECKPOINTING", partial(activity, name="saving", saved=limits.SAVED),
        "Saving takes {percent} of the time{when}.",
        "Save asynchronously, less often, or to faster storage.",
    ),
    Cause(
        "EVALUATION_BOUND", partial(activity, name="evaluation", saved=_HALF),
        "Evaluation takes {percent} of the time{when}.",
        "Evaluate half as often, or on half of the data.",
    ),
    Cause(
        "LOGGING", partial(activity, name="logging", saved=limits.SAVED),
        "Logging takes {percent} of the time.",
        "Log every few steps, and do not read values from the device for each.",
    ),
    Cause(
        "GC_BOUND", partial(activity, name="garbage collection", saved=limits.SAVED),
        "Garbage collection takes {percent} of the time.",
        "Call gc.freeze() after the start, and collect at steps of your choice, the same on all ranks.",
    ),
    Cause(
        "COMMUNICATION_BOUND", partial(activity, name="communication", saved=limits.KERNELS_SAVED["COMMUNICATION_BOUND"]),
        "Communication itself takes {percent} of the time, without waiting for slow ranks.",
        "Overlap it with computation, send less (lower precision, gradient accumulation), or use faster links.",
    ),
)  # fmt: skip
