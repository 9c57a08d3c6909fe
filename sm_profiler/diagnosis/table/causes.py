"""Causes of lost time: how each is recognized, what its repair changes, and the words for it.

A new cause is a row of `CAUSES`. It names a function that recognizes it and repairs the steps, and its texts. No cause
refers to another: which leads, and what is left of the others, follows from replaying the repaired steps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import attrs
import numpy as np

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.ledger import MEETING, UNKNOWN, UNSEEN, Ledger
from sm_profiler.diagnosis.table.naming import activity_of, is_computation, runs_backward
from sm_profiler.diagnosis.table.operations import sums_by_rank
from sm_profiler.diagnosis.table.patterns import long_steps, period_of, relative, slow_stretch, within_ranks
from sm_profiler.diagnosis.table.whatif import Steps, by_stage, gain
from sm_profiler.formats.columns import Floats, Ints, Mask
from sm_profiler.formatting import plural

# Activities that are causes by themselves.
NAMED = ("saving", "evaluation", "logging", "garbage collection")
# Names of columns that count a rank's work.
WORK = re.compile(
    r"token|sample|example|sequence|seq.?len|length|word|item|image|pixel|frame|point|atom|edge|document|batch.?size|flop"
)
STEEPEST = 2.2  # percent of time for each percent of work: attention's cost is the square, and noise adds some


@attrs.frozen
class Fact:
    """A number behind a finding: what it measures, its value and unit, and what to compare it with."""

    metric: str
    value: float | str
    unit: str = ""
    usual: float | None = None
    where: str = ""


@attrs.frozen(eq=False)
class Repair:
    """A recognized cause, and the steps without it.

    Attributes:
        after: the repaired steps.
        least: the steps if the repair works less well than expected; None if it cannot.
        words: values for the cause's texts.
        facts: numbers behind it.
        ranks: names of the ranks that cause it; empty if all do.
        stage: name of the stage that causes it; "" if none does.
        steps: the steps it happens in, if they are a stretch of the recording.
    """

    after: Steps
    least: Steps | None = None
    words: Mapping[str, object] = attrs.field(factory=dict)
    facts: tuple[Fact, ...] = ()
    ranks: tuple[str, ...] = ()
    stage: str = ""
    steps: Mask | None = None


@attrs.frozen
class Cause:
    """A row of the table of causes: its class, how to find it, its texts."""

    kind: str
    repair: Callable[[Steps, Ledger], Repair | None]
    headline: str
    advice: str


def activity(
    before: Steps, ledger: Ledger, *, name: str, kept: float = 0.0, least: float | None = None
) -> Repair | None:
    """Repair an activity that training can do without, or with less of it.

    Args:
        before: the steps.
        ledger: the ledger.
        name: the activity.
        kept: share of its time that is left after the repair.
        least: share that is left if the repair works less well; default: as much.
    """
    rows = np.asarray([activity_of(each) == name or each == name for each in before.graph.names], np.bool_)
    spent = before.seconds[rows]
    if not spent.any():
        return None

    mine = sums_by_rank(spent, before.graph.ranks[rows], len(before.ranks))
    waited = mine.max(axis=0) - mine  # those that do not save or evaluate wait for the rank that does
    unseen = before.graph.named(UNSEEN)

    def with_share(share: float) -> Steps:
        seconds = before.seconds.copy()
        seconds[rows] = spent * share
        seconds[unseen] = np.maximum(seconds[unseen] - (1 - share) * waited[before.graph.ranks[unseen]], 0.0)
        return before.repaired(seconds)

    share = ledger.totals.share(name)
    happens = spent.sum(axis=0) > 0
    steps_with, period = int(happens.sum()), period_of(happens)
    when = f", every {period} steps" if period else f", in {steps_with} steps" if not happens.all() else ""
    facts = (
        Fact(f"time of the ranks in {name}", share, "share"),
        Fact(f"steps with {name}", steps_with, "", float(spent.shape[1])),
    )
    return Repair(with_share(kept), None if least is None else with_share(least), {"share": share, "when": when}, facts)


def slow_ranks(before: Steps, ledger: Ledger) -> Repair | None:
    """Repair the few ranks that take longer than their peers for the same work, in all steps."""
    if len(before.ranks) < 2:
        return None
    fair = _even_work(before, ledger)  # a rank that has more work need not be slow
    factors = np.median(relative(fair.local, np.asarray(before.stage_of)), axis=1)

    def repaired(slow: Ints, *, slowest: bool = False) -> Steps:
        if fair is before:
            return _as_peers(before, slow, slowest=slowest)
        scale = np.ones((len(factors), 1))
        scale[slow, 0] = np.maximum(factors[slow], 1.0)
        return before.working(before.local / scale)

    order = np.argsort(-factors, kind="stable")
    most = min(len(order) // 2, limits.SAME_RANKS)
    tried = [(gain(before, repaired(order[:count])).value, count) for count in range(1, most + 1)]
    best = max(value for value, _ in tried)
    count = next(count for value, count in tried if value >= limits.MOST * best)
    slow = order[:count]
    # what is faster than its peers in some steps and slower in others is not slow: the slowest of each step is chance
    if min(best, 1 - 1 / max(float(factors[slow].max()), 1.0)) < limits.FLOOR or factors[slow].min() <= 1:
        return None
    names = tuple(before.ranks[rank] for rank in slow.tolist())
    facts = (
        *(Fact("time for its own work, compared with its peers", float(factors[rank]), "times", 1.0, before.ranks[rank]) for rank in slow[:3].tolist()),
        _waiting(ledger),
        *_explained(ledger, before.local),
    )  # fmt: skip
    least = repaired(slow, slowest=True)
    return Repair(repaired(slow), least, {"factor": float(factors[slow].mean())}, facts, names)


def _as_peers(before: Steps, slow: Ints, *, slowest: bool = False) -> Steps:
    """Return the steps in which some ranks take as long as their peers for each operation, or as the slowest of these."""
    graph, seconds = before.graph, before.seconds.copy()
    stages = np.asarray(before.stage_of)
    is_slow = np.isin(graph.ranks, slow)
    groups: dict[tuple[str, int, int], list[int]] = {}
    for node in np.flatnonzero(graph.local).tolist():
        groups.setdefault((graph.names[node], int(graph.order[node]), int(stages[graph.ranks[node]])), []).append(node)
    everywhere: dict[tuple[str, int], list[int]] = {}
    for (name, order, _), nodes in groups.items():
        everywhere.setdefault((name, order), []).extend(nodes)
    for (name, order, _), nodes in groups.items():
        mine = [node for node in nodes if is_slow[node]]
        peers = [node for node in nodes if not is_slow[node]] or [
            node for node in everywhere[name, order] if not is_slow[node]
        ]
        if mine and peers:
            usual = before.seconds[peers].max(axis=0) if slowest else before.seconds[peers].mean(axis=0)
            seconds[mine] = np.minimum(seconds[mine], usual)
    return before.repaired(seconds)


def slow_since(before: Steps, ledger: Ledger) -> Repair | None:
    """Repair ranks, or all of them, that become slower at some step, for a while or until the end."""
    local = before.local
    several = len(before.ranks) > 1
    series = relative(_even_work(before, ledger).local, np.asarray(before.stage_of)) if several else local
    found = {rank: stretch for rank in range(len(series)) if (stretch := slow_stretch(series[rank]))}
    if not found and several:  # all at once, which no comparison among ranks can show
        stretch = slow_stretch(before.length)
        found = dict.fromkeys(range(len(series)), stretch) if stretch else {}
    if not found:
        return None
    lead = max(found, key=lambda rank: (found[rank].factor - 1) * (found[rank].last - found[rank].first))
    stretch = found[lead]
    together = [
        rank for rank, one in found.items() if _overlap(one.first, one.last, stretch.first, stretch.last) >= 0.5
    ]
    seconds, least = before.seconds.copy(), before.seconds.copy()
    steps = np.zeros(local.shape[1], np.bool_)
    for rank in together:
        one = found[rank]
        steps[one.first : one.last] = True
        rows = np.flatnonzero(before.graph.ranks == rank)
        seconds[rows, one.first : one.last] /= one.factor
        least[rows, one.first : one.last] /= 1 + (one.factor - 1) * limits.MOST
    numbers = before.graph.steps
    whole = len(together) == len(before.ranks)
    words = {
        "factor": float(np.mean([found[rank].factor for rank in together])),
        "first": int(numbers[steps][0]),
        "last": int(numbers[steps][-1]),
        "since": stretch.open,
        "all": whole,
    }
    facts = tuple(
        Fact(
            "its own work in these steps, compared with the others",
            found[rank].factor,
            "times",
            1.0,
            before.ranks[rank],
        )
        for rank in sorted(together, key=lambda rank: -found[rank].factor)[:4]
    )
    names = () if whole and several else tuple(before.ranks[rank] for rank in together)
    return Repair(before.repaired(seconds), before.repaired(least), words, facts, names if several else (), "", steps)


def _overlap(first: int, last: int, other_first: int, other_last: int) -> float:
    return max(min(last, other_last) - max(first, other_first), 0) / max(min(last - first, other_last - other_first), 1)


def uneven_microbatches(before: Steps, ledger: Ledger) -> Repair | None:
    """Repair microbatches of unequal cost: forward and backward agree on which of them are long, on every rank."""
    graph = before.graph
    agreement, spread = _passes_agree(before)
    if agreement < limits.TOGETHER:
        return None
    seconds = before.seconds.copy()
    stages = np.asarray(before.stage_of)
    for name in _passes(before):
        for stage in sorted(set(stages.tolist())):
            ranks_of = np.flatnonzero(stages == stage)
            rows = graph.named(name) & np.isin(graph.ranks, ranks_of)
            if not rows.any():
                continue
            usual = before.seconds[rows].mean()
            for rank in ranks_of.tolist():
                mine = graph.named(name) & (graph.ranks == rank)
                each = before.seconds[mine]
                error = each.std() / np.sqrt(max(each.size, 1))
                # A rank whose mean differs by chance had longer sequences; beyond chance it is slow, which stays as it is.
                by_chance = abs(each.mean() - usual) <= limits.BEYOND_CHANCE * error if each.size else True
                seconds[mine] = usual if by_chance else each.mean()
    facts = (
        Fact("agreement of forward and backward on which microbatches are long", agreement, "correlation"),
        Fact(
            "longest of 20 microbatches, compared with the mean",
            float(np.quantile(spread, 0.95) / spread.mean()),
            "times",
            1.0,
        ),
        _waiting(ledger),
    )
    after = attrs.evolve(before, seconds=seconds)  # short ones take longer then: the work is divided, not removed
    return Repair(after, None, {"agreement": agreement}, facts)


def _passes_agree(before: Steps) -> tuple[float, Floats]:
    """Return the correlation of forward and backward of the same microbatch within each rank, and the forward times."""
    graph = before.graph
    pairs: dict[tuple[int, int], list[int]] = {}
    passes = _passes(before)
    for node in np.flatnonzero(graph.local).tolist():
        if graph.names[node] in passes:
            pairs.setdefault((int(graph.ranks[node]), int(graph.order[node])), []).append(node)
    forward, backward, ranks = [], [], []
    for (rank, _), nodes in pairs.items():
        ahead = [node for node in nodes if not runs_backward(graph.names[node])]
        back = [node for node in nodes if runs_backward(graph.names[node])]
        if len(ahead) == 1 and len(back) == 1:
            forward.append(before.seconds[ahead[0]])
            backward.append(before.seconds[back[0]])
            ranks += [rank] * len(graph.steps)
    if not forward:
        return 0.0, np.zeros(0)
    spread = np.concatenate(forward)
    return within_ranks(spread, np.concatenate(backward), ranks), spread


def _passes(steps: Steps) -> list[str]:
    """Return the names of the operations that are forward and backward passes."""
    names = {steps.graph.names[node] for node in np.flatnonzero(steps.graph.local).tolist()}
    return sorted(name for name in names if is_computation(name) or activity_of(name) in ("forward", "backward"))


def padding(before: Steps, ledger: Ledger) -> Repair | None:
    """Take the padding out of batches: what the passes compute on it is not computed, attention least of all."""
    part = ledger.facts.get("padding")
    if (
        part is None
        or part.shape != (len(before.ranks), len(before.graph.steps))
        or not 0 <= part.min() <= part.max() <= 1
    ):
        return None
    seconds = before.seconds.copy()
    for name in _passes(before):
        for rank in range(len(before.ranks)):
            rows = before.graph.named(name) & (before.graph.ranks == rank)
            seconds[rows] *= 1 - part[rank]
    least = before.seconds - limits.MAJORITY * (before.seconds - seconds)  # lengths of a bucket still differ
    facts = (Fact("padding, of all tokens", float(part.mean()), "share"),)
    return Repair(before.repaired(seconds), before.repaired(least), {"share": float(part.mean())}, facts)


def uneven_stages(before: Steps, ledger: Ledger) -> Repair | None:
    """Repair pipeline stages of unequal cost: layers move from the expensive ones to the others."""
    if len(before.stages) < 2:
        return None
    graph, seconds = before.graph, before.seconds.copy()
    stage_of = np.asarray([before.stage_of[rank] if rank >= 0 else -1 for rank in graph.ranks])
    ratio = np.ones(len(before.stages))
    for name in _passes(before):
        means = {
            stage: float(before.seconds[rows].mean())
            for stage in range(len(before.stages))
            if (rows := graph.named(name) & (stage_of == stage)).any()
        }
        usual = float(np.mean(list(means.values())))
        for stage, mean in means.items():
            rows = graph.named(name) & (stage_of == stage)
            seconds[rows] = before.seconds[rows] * (usual / mean if mean > 0 else 1.0)
            ratio[stage] = max(ratio[stage], mean / usual if usual > 0 else 1.0)
    worst = int(ratio.argmax())
    facts = tuple(
        Fact(
            "computation, compared with the mean stage",
            float(ratio[stage]),
            "times",
            1.0,
            f"stage {before.stages[stage]}",
        )
        for stage in np.argsort(-ratio)[:3].tolist()
    )
    words = {"factor": float(ratio[worst]), "stage": before.stages[worst]}
    return Repair(attrs.evolve(before, seconds=seconds), None, words, facts, (), before.stages[worst])


def rare_steps(before: Steps, ledger: Ledger, *, regular: bool) -> Repair | None:
    """Repair a few steps that take much longer than the others, at regular intervals or not."""
    long = long_steps(before.length)
    period = period_of(long)
    if not long.any() or (period is not None) != regular:
        return None
    usual = np.median(before.seconds[:, ~long], axis=1)
    seconds = before.seconds.copy()
    seconds[:, long] = np.minimum(seconds[:, long], usual[:, None])
    length = before.length
    grown = _grown_most(before, before.seconds[:, long].mean(axis=1) - usual)
    total = sum(grown.values())
    if sum(grown.get(name, 0.0) for name in NAMED) >= limits.MAJORITY * total:
        return None  # that operation is the cause
    most = max(grown, key=lambda name: grown[name])
    known = grown[most] >= limits.MAJORITY * total and most not in UNKNOWN
    find = "Find what the loop does every {}: saving, evaluating, logging, or collecting garbage."
    if known:
        find = f"Find out why {most} takes longer every {{}}; do that less often, faster, or in the background."
    numbers = before.graph.steps
    words = {
        "count": int(long.sum()),
        "period": period,
        "factor": float(np.median(length[long]) / np.median(length[~long])),
        "mostly": f", most of it in {most}" if known else "",
        "find": find.format(plural(period or 0, "step")),
        "what": f"{most} in those steps" if known else "those steps",
    }
    facts = (
        Fact(
            "the longest step",
            float(length.max()),
            "s",
            float(np.median(length)),
            f"step {numbers[int(length.argmax())]}",
        ),
        Fact("what grows most in them", most),
    )
    return Repair(before.repaired(seconds), None, words, facts)


def _grown_most(before: Steps, more: Floats) -> dict[str, float]:
    """Return how much the activities of a rank grow, given it by node: the rank on which most of the growth has a name."""
    graph, best = before.graph, dict[str, float]()
    for rank in range(len(before.ranks)):
        grown: dict[str, float] = {}
        for node in np.flatnonzero((graph.ranks == rank) | ~graph.local).tolist():
            name = activity_of(graph.names[node])
            grown[name] = grown.get(name, 0.0) + max(float(more[node]), 0.0)
        best = max(best, grown, key=lambda each: sum(spent for name, spent in each.items() if name not in UNKNOWN))
    return best


def uneven_work(before: Steps, ledger: Ledger) -> Repair | None:
    """Repair work that is divided unevenly, as a column of the table counts it: tokens, samples."""
    found = _work_column(before, ledger)
    if found is None:
        return None
    name, values, agreement = found
    more = np.median(relative(values, np.asarray(before.stage_of)), axis=1)
    most = np.flatnonzero(more >= 1 + limits.NOTICEABLE)
    names = (
        tuple(before.ranks[rank] for rank in most.tolist())
        if len(most) <= min(len(more) // 2, limits.SAME_RANKS)
        else ()
    )
    facts = (
        Fact(f"the ranks' work goes with the column {name}", agreement, "correlation"),
        *(Fact(f"{name}, compared with its peers", float(more[rank]), "times", 1.0, before.ranks[rank]) for rank in most[:3].tolist() if names),
        _waiting(ledger),
    )  # fmt: skip
    uneven = "the ranks with more of it change from step to step, and all others wait for them"
    if names:
        listed = f"rank{'s' * (len(names) > 1)} {', '.join(names)} ha{'ve' if len(names) > 1 else 's'}"
        uneven = f"{listed} {float(more[most].mean()):.3g} times as much as the others, which wait"
    words = {"column": name, "uneven": uneven}
    return Repair(_even_work(before, ledger), None, words, facts, names)


def _even_work(before: Steps, ledger: Ledger) -> Steps:
    """Return the steps in which the ranks have equal work; as they are if no column shows the work."""
    found = _work_column(before, ledger)
    if found is None:
        return before
    work, local = found[1] - by_stage(found[1], before.stage_of), before.local
    slope = float((work * local).sum() / (work * work).sum())
    return before.working(np.maximum(local - slope * work, 0.0))  # the work is divided, not removed


def _work_column(before: Steps, ledger: Ledger) -> tuple[str, Floats, float] | None:
    """Return the column of work that differs among ranks as their time does: name, values by rank and step, correlation.

    A column such as a temperature may follow the time, too, so the name must show that it counts work; and if time grows
    faster than the square of the work, it is something else that takes it.
    """
    stages, kept = before.stage_of, np.isin(ledger.common_steps, before.graph.steps)
    local = before.local
    spent = local - by_stage(local, stages)
    best: tuple[str, Floats, float] | None = None
    for name, column in ledger.facts.items():
        values = column[:, kept]
        if not WORK.search(name.lower()) or values.shape != local.shape or values.min() < 0:
            continue
        work = values - by_stage(values, stages)
        scale = float((work * work).sum() * (spent * spent).sum())
        together = float((work * spent).sum())
        if scale <= 0 or together < limits.TOGETHER * scale**0.5:
            continue
        growth = together / float((work * work).sum()) * float(values.mean() / local.mean())
        if growth <= STEEPEST and (best is None or together / scale**0.5 > best[2]):
            best = name, values, together / scale**0.5
    return best


def late_ranks(before: Steps, ledger: Ledger, *, single: bool) -> Repair | None:
    """Repair steps in which the ranks wait for a late one: the same now and then, or another each time."""
    count = len(before.ranks)
    if count < 2:
        return None
    late, usual = before.lateness
    gone = before.repaired(before.working(before.local / np.maximum(late, 1.0)).seconds)
    spread = before.working(by_stage(before.local / usual, before.stage_of) * usual)
    lost = np.maximum(before.length - gone.length, 0.0)
    rows = lost <= np.quantile(lost, limits.MOST)  # rare long steps are another cause
    if lost.sum() <= 0 or lost[rows].sum() < limits.FLOOR * before.length[rows].sum():
        return None
    last = late.argmax(axis=0)
    causes = np.bincount(last, lost, count) / lost.sum()
    most = int(causes.argmax())
    if (causes[most] > 1 / count + limits.MAJORITY * (1 - 1 / count)) != single:
        return None
    if _work_column(before, ledger) is not None or _passes_agree(before)[0] >= limits.TOGETHER:
        return None  # the data explain it
    grown = {name: _grown(before, name, last) for name in sorted({activity_of(one) for one in before.graph.names})}
    where = max(grown, key=lambda name: grown[name])
    changes = Fact(
        "steps in which another rank is late than in the step before", float((np.diff(last) != 0).mean()), "share"
    )
    facts = (
        Fact("time lost to the rank that is late most often", float(causes[most]), "share", 1 / count, before.ranks[most]),
        *(() if single else (changes,)),
        _waiting(ledger),
        *_explained(ledger, before.local),
    )  # fmt: skip
    words = {
        "mostly": f"; what takes it longer is mostly {where}" if where not in UNKNOWN else "",
        "share": float((late[most] >= 1 + limits.FLOOR).mean()),
        "hide": "Load ahead, so that a slow batch hides behind others: more workers, more prefetching. "
        if where == "data wait"
        else "",
    }
    return Repair(gone, spread, words, facts, (before.ranks[most],) if single else ())


def _grown(before: Steps, name: str, last: Ints) -> float:
    """Return the seconds of an activity that the late rank of each step has beyond the median of all."""
    rows = np.asarray([activity_of(one) == name for one in before.graph.names], np.bool_) & before.graph.local
    spent = sums_by_rank(before.seconds[rows], before.graph.ranks[rows], len(before.ranks))
    return float((spent[last, np.arange(len(last))] - np.median(spent, axis=0)).sum())


def _waiting(ledger: Ledger) -> Fact:
    """Return how much the ranks wait for each other, or that it is an assumption."""
    name = "waiting for other ranks"
    if ledger.operations is None:
        return Fact(name, "not recorded; a step is taken to end with its slowest rank")
    return Fact(f"{name}, of all ranks' time", ledger.totals.share(MEETING), "share")


def _explained(ledger: Ledger, local: Floats) -> tuple[Fact, ...]:
    """Return further columns of the table that go with what the ranks' own work takes, on average or step by step."""
    found = []
    ranks = np.repeat(np.arange(len(local)), local.shape[1]).tolist()
    for name, values in ledger.facts.items():
        means, spent = values.mean(axis=1), local.mean(axis=1)
        correlation = 0.0
        if len(means) == len(local) > 2 and np.ptp(means) > 0 and np.ptp(spent) > 0:
            correlation = float(np.corrcoef(means, spent)[0, 1])
        if values.shape == local.shape:
            in_step = (values - values.mean(axis=0)).ravel(), (local - local.mean(axis=0)).ravel()
            correlation = max(correlation, within_ranks(*in_step, ranks), key=abs)
        if abs(correlation) >= limits.TOGETHER:
            found.append(
                (abs(correlation), Fact(f"the ranks' work goes with the column {name}", correlation, "correlation"))
            )
    return tuple(fact for _, fact in sorted(found, key=lambda pair: -pair[0])[:2])


CAUSES: Sequence[Cause] = (
    Cause(
        "STRAGGLER", slow_ranks,
        "{Ranks} {take} {factor:.3g} times as long as {their} peers, and all other ranks wait.",
        "Compare the machine of {ranks} with the others: GPU clocks and temperature, memory errors, other processes. Swap it "
        "for another and run again. If the same rank numbers stay slow, look for work or data that only they have.",
    ),
    Cause(
        "FAIL_SLOW", slow_since,
        "{When}, {ranks} took {factor:.3g} times as long as in the other steps{wait}.",
        "Find out what happened at step {first}: other jobs on the machine, GPU clocks, the network, the data of those steps. "
        "If it is still slow, move {ranks} to another machine.",
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
        "{Ranks} {take} longer than usual in {share:.0%} of the steps, and all other ranks wait{mostly}.",
        "{hide}Find what stops {ranks} now and then: other processes on the machine, garbage collection, slow reads, logging or "
        "metrics that no other rank has.",
    ),
    Cause(
        "MOVING_STRAGGLER", partial(late_ranks, single=False),
        "The late rank changes from step to step, and all others wait for it{mostly}.",
        "{hide}If their data differ in size, give all ranks equal work in each step, and add a column with it (tokens, samples) to "
        "confirm it. If not, look for what stops a rank now and then: other processes, garbage collection, slow reads.",
    ),
    Cause(
        "PADDING_WASTE", padding,
        "{share:.0%} of the tokens that the passes compute on are padding.",
        "Batch sequences of similar length, or pack several into one row with a mask between them, so that less is padded.",
    ),
    Cause(
        "STAGE_IMBALANCE", uneven_stages,
        "Pipeline stage {stage} computes {factor:.3g} times as long as the average stage, and the others wait for it.",
        "Move layers from stage {stage} to the other stages. The embedding and the loss count as layers, too.",
    ),
    Cause(
        "PERIODIC_STALL", partial(rare_steps, regular=True),
        "Every {period} steps, one takes {factor:.3g} times as long as the others{mostly}.",
        "{find}",
    ),
    Cause(
        "STEP_OUTLIERS", partial(rare_steps, regular=False),
        "{count} steps take {factor:.3g} times as long as the others, at no regular interval{mostly}.",
        "Compare {what} with the others: their data, other jobs on the machine, the network.",
    ),
    Cause(
        "INPUT_BOUND", partial(activity, name="data wait", kept=0.0, least=0.3),
        "The ranks wait for data {share:.0%} of the time.",
        "Load ahead: more workers, prefetching, cheaper decoding; or prepare the data once and store it.",
    ),
    Cause(
        "CHECKPOINTING", partial(activity, name="saving", kept=0.0, least=0.5),
        "Saving takes {share:.0%} of the time{when}.",
        "Save asynchronously, less often, or to faster storage.",
    ),
    Cause(
        "EVALUATION_BOUND", partial(activity, name="evaluation", kept=0.5),
        "Evaluation takes {share:.0%} of the time{when}.",
        "Evaluate half as often, or on a part of the data.",
    ),
    Cause(
        "LOGGING", partial(activity, name="logging", kept=0.1),
        "Logging takes {share:.0%} of the time.",
        "Log every few steps, and do not read values from the device for each.",
    ),
    Cause(
        "GC_BOUND", partial(activity, name="garbage collection", kept=0.0),
        "Garbage collection takes {share:.0%} of the time.",
        "Call gc.freeze() after the start, and collect at steps of your choice, the same on all ranks.",
    ),
    Cause(
        "COMMUNICATION_BOUND", partial(activity, name="communication", kept=0.0, least=0.7),
        "Communication itself takes {share:.0%} of the time, without waiting for slow ranks.",
        "Overlap it with computation, send less (lower precision, gradient accumulation), or use faster links.",
    ),
)  # fmt: skip
