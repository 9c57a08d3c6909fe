"""Steps that differ from the others: rare long ones, with a period and without, and those since a moment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from statistics import NormalDist

import attrs
import numpy as np

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.blocks import growth_of_blocks
from sm_profiler.diagnosis.confidence import MAY_BE_NEEDED, OTHERS_WORK
from sm_profiler.diagnosis.model import Evidence, Location
from sm_profiler.diagnosis.profile.case import Case, Found, cores_of_others, input_bursts
from sm_profiler.diagnosis.profile.computing import MAX_NAME, long_steps_may_wait
from sm_profiler.diagnosis.profile.ledger import AGAIN, BESIDE_THE_PHASES, COMPILING, NAMED, PHASE, WAIT, rows_of_rank
from sm_profiler.diagnosis.profile.lines import STEPS, lines_of_long_steps, lines_of_samples, lines_since
from sm_profiler.diagnosis.profile.loop import Loop
from sm_profiler.diagnosis.repairing import Saving
from sm_profiler.diagnosis.words import FRAGMENTS
from sm_profiler.formats.columns import Floats, Ints, Mask
from sm_profiler.formats.recorded import Epoch, LoaderWorkers
from sm_profiler.formatting import duration, percent, shorten
from sm_profiler.metrics import parts, thresholds
from sm_profiler.metrics.job_metrics import JobMetrics, Rank
from sm_profiler.metrics.stalls import Iterations, find_stalls
from sm_profiler.printable import printable


def worst_stalls(case: Case) -> Rank | None:
    """Return the rank that loses most in long steps; None if none does."""
    ranks = [rank for rank in case.ranks if rank.stalls.count and not input_bursts(rank, case.metrics)]
    ranks += [found for rank in case.ranks if (found := _between_steps(rank, case)) is not None]
    return max(ranks, key=lambda rank: rank.stall_share, default=None)


def _between_steps(rank: Rank, case: Case) -> Rank | None:
    """Return a rank with the stalls of its rows instead of its steps, if a step evaluates now and then.

    Such a step is none of the usual ones, and what surrounds the evaluation (samples that are drawn, results that are
    written) lies in no other. Activities with causes of their own are left out.
    """
    if rank.seconds["evaluation"] <= 0 or rank.judged is not None:
        return None
    rows = case.ledger.ranks[case.ranks.index(rank)]
    own = {name: spent[:-1] for name, spent in rows.seconds.items() if name not in NAMED}
    keys: dict[str, list[str]] = {key: [] for key in parts.iteration_keys()}
    for name in own:
        key = "wait" if name == WAIT else parts.DECLARED if name.startswith(PHASE) else name
        keys[key if key in keys else "outside"].append(name)
    nothing = np.zeros(len(rows.steps) - 1)
    seconds = {key: np.sum([own[name] for name in names], axis=0) if names else nothing for key, names in keys.items()}
    length = np.asarray(sum(seconds.values(), nothing))
    known = np.ones(len(length), np.bool_)
    iterations = Iterations(rows.steps[:-1], rows_of_rank(rank).start[:-1], length, seconds, nothing, known)
    return attrs.evolve(rank, iterations=iterations, stalls=find_stalls(iterations))


def _stalls_saved(rank: Rank, loop: Loop) -> Saving:
    """Make long steps as long as usual ones; what has a cause of its own is left to that."""
    long = loop.placed(rank.iterations.index, rank.stalls.long.astype(np.float64)) > 0
    if not long.any() or long.all():
        return Saving(loop.now * 0.0)
    own = [name for name in loop.left if name not in NAMED]
    rest = loop.of_activity(*own)
    beyond = np.where(long, np.maximum(rest - np.median(rest[~long]), 0.0), 0.0)
    least, value, _ = limits.SAVED
    grown = [name for part in rank.stalls.grown if part != parts.UNKNOWN for name in loop.named(part)]
    return Saving(beyond * value, least / value, 1 / value, tuple(dict.fromkeys((*grown, *own))), strict=True)


def _of_calls(rank: Rank, case: Case) -> bool:
    """Return whether long steps are those in which a save, a log line, a callback or an evaluation takes most of the excess.

    What remains of the excess surrounds these calls: the repair of their cause shortens it, too.
    """
    if case.loop is None:
        return False
    long = case.loop.placed(rank.iterations.index, rank.stalls.long.astype(np.float64)) > 0
    if not long.any() or long.all():
        return False
    named, length = case.loop.of_activity(*NAMED), case.loop.now
    beyond = float((length[long] - np.median(length[~long])).sum())
    return float(named[long].sum() - np.median(named[~long]) * long.sum()) >= limits.MAJORITY * beyond


def _learn(rank: Rank, case: Case) -> bool:
    """Return whether what makes long steps long is learning: passes and updates that an algorithm does now and then.

    Samples have to show it.
    """
    if rank.stalls.where not in {parts.UNKNOWN, *STEPS}:
        return False
    seen = [one for one in case.metrics.samples.stacks if one.process == rank.name and one.long]
    spent = sum(one.seconds for one in seen if {one.phase, case.seen.activity(one)} & {*STEPS})
    return spent > limits.MAJORITY * sum(one.seconds for one in seen)


def _lines(rank: Rank, case: Case) -> tuple[Location, ...]:
    """Return the lines of long steps; outside the phases for stalls that surround evaluations."""
    if rank in case.ranks or rank.stalls.where != "outside":
        return lines_of_long_steps(case.metrics)
    return lines_of_samples(case.metrics, lambda one: one.process == rank.name and one.phase in BESIDE_THE_PHASES)


def periodic(case: Case) -> Found | None:
    """Find long steps at a fixed interval."""
    rank = worst_stalls(case)
    if rank is None or rank.stalls.period is None or rank.stall_share < limits.FLOOR or long_steps_may_wait(rank, case):
        return None  # without a period, or long only because of collections
    if _of_calls(rank, case) or _learn(rank, case):
        return None
    if not rank.stalls.exact and _are_slices(rank, case):
        return None
    stalls, restarted = rank.stalls, _restarted(rank, case)
    where = "wait" if restarted else stalls.where
    if _between_epochs(rank, case):
        advice = "between_epochs"
    elif where == "wait":
        advice = "periodic_wait"
    else:
        advice = "periodic_outside"
    words = {
        "about": "" if stalls.exact else "about ",
        "period": stalls.period,
        "typical": duration(stalls.typical),
        "usual": duration(stalls.median),
        "where": FRAGMENTS["workers_start"] if restarted else _during(rank),
        "share": percent(rank.stall_share),
        "restarts": FRAGMENTS["workers_restart" if case.metrics.loader.num_workers > 0 else "dataset_restarts"],
    }
    evidence = (
        Evidence("time lost in long steps", round(rank.stall_share, 4), None, rank.name, "share"),
        Evidence("period", stalls.period, None, rank.name, "steps"),
        Evidence("long steps", stalls.count, thresholds.PERIOD_REPEATS, rank.name, held="judged from"),
        *restarted,
        _duration(rank),
    )
    return Found(
        "periodic", words, evidence, rank.stall_share, advice, partial(_stalls_saved, rank),
        _doubt(rank, case, restarted=bool(restarted)), where=_lines(rank, case),
        low=case.load_doubt or ("" if stalls.exact else case.by_others(rank.stall_share)),  # slices of time come by the clock, too
    )  # fmt: skip


def _doubt(rank: Rank, case: Case, *, restarted: bool) -> str:
    """Return why stalls with a period may have another cause; "" if nothing speaks for that."""
    stalls = rank.stalls
    if not stalls.exact:
        return "the interval varies"
    if stalls.where == "wait" and not restarted:
        return "the input may be slow, and not its start"
    return "" if restarted else MAY_BE_NEEDED


def _during(rank: Rank) -> str:
    """Return where the long steps spend their time; a phase that the script declared by its name."""
    names = list(rank.declared)
    if rank.stalls.where == parts.DECLARED and names:
        return f"in the phase “{shorten(printable(names[0]), MAX_NAME)}”"
    return parts.during_all(rank.stalls.grown)


def _duration(rank: Rank) -> Evidence:
    typical, median = round(rank.stalls.typical * 1e3, 3), round(rank.stalls.median * 1e3, 3)
    return Evidence("duration of a long step", typical, median, rank.name, "ms", "usually")


def _between_epochs(rank: Rank, case: Case) -> bool:
    """Return whether each long step is one in which an epoch ended."""
    ends = [one.end for one in case.metrics.recorded(Epoch).of(rank.name)]
    starts, long = rank.iterations.start[rank.stalls.long], rank.iterations.length[rank.stalls.long]
    return bool(ends) and all(
        any(start <= end <= start + length for end in ends) for start, length in zip(starts, long, strict=True)
    )


def _restarted(rank: Rank, case: Case) -> tuple[Evidence, ...]:
    """Return the evidence that long steps are long because a loader stops its workers and starts them again, if they are."""
    iterations, long = rank.iterations, rank.stalls.long
    stops, starts, rows = 0.0, 0.0, set()
    for one in case.metrics.recorded(LoaderWorkers).of(rank.name):
        row = int(np.searchsorted(iterations.start, one.start, side="right")) - 1
        if row >= 0 and long[row] and one.start < iterations.start[row] + iterations.length[row]:
            rows.add(row)
            stops, starts = (stops + one.seconds, starts) if one.name == "stop" else (stops, starts + one.seconds)
    if not rows or len(rows) < limits.MAJORITY * rank.stalls.count:
        return ()
    waits, lost = iterations.of("wait"), float((iterations.length[long] - rank.stalls.median).sum())
    waited = float((waits[sorted(rows)] - np.median(waits)).sum())  # from the start of the workers
    if stops + max(starts, waited) < limits.MAJORITY * lost:
        return ()
    each = round((stops + starts) / len(rows) * 1e3, 3)
    return (Evidence("time to stop and start the loader's workers", each, None, rank.name, "ms"),)


def outliers(case: Case) -> Found | None:
    """Find rare long steps without a period."""
    rank = worst_stalls(case)
    if rank is None or rank.stalls.period is not None or not rank.stalls.is_rare:
        return None
    stalls, by_others = rank.stalls, max((_without_core(rank, case) for rank in case.ranks), default=0.0)
    # A longer job has no more first compilations: they belong to its start.
    first = _share_in_long(rank, case, COMPILING)
    if (
        rank.stall_share - by_others - first < limits.FLOOR + limits.REPEAT  # the machine's own noise costs as much
        or stalls.typical < limits.CLEARLY * thresholds.LONG_STEP * stalls.median  # a busy machine doubles steps, too
        or stalls.agreement < thresholds.SAME_PART
        or long_steps_may_wait(rank, case)
    ):
        return None
    if _are_slices(rank, case):
        return None
    epochs, once = _between_epochs(rank, case), stalls.count == 1
    words = {
        "count": stalls.count,
        "steps": len(rank.iterations),
        "takes": "takes" if once else "take",
        "typical": duration(stalls.typical),
        "usual": duration(stalls.median),
        "where": _during(rank),
        "when": FRAGMENTS["in_epochs"] if epochs else "" if once else FRAGMENTS["irregular"],
        "costs": "it costs" if once else "they cost",
        "share": percent(rank.stall_share),
    }
    evidence = (
        Evidence("time lost in long steps", round(rank.stall_share, 4), None, rank.name, "share"),
        Evidence("long steps", stalls.count, None, rank.name),
        _duration(rank),
    )
    return Found(
        "outliers", words, evidence, rank.stall_share, "between_epochs" if epochs else "outliers",
        partial(_stalls_saved, rank),
        "" if by_others < limits.MAJORITY * rank.stall_share else OTHERS_WORK,
        # threads that a library starts wait for a core, too, unseen
        where=_lines(rank, case), low=case.load_doubt or case.by_others(rank.stall_share / limits.SURELY),
    )  # fmt: skip


def _share_in_long(rank: Rank, case: Case, name: str) -> float:
    """Return the share of the loop that an activity takes in a rank's long steps."""
    if case.loop is None:
        return 0.0
    long = case.loop.placed(rank.iterations.index, rank.stalls.long.astype(np.float64))
    return float((case.loop.of_activity(name) * long).sum() / case.loop.length.sum())


def _are_slices(rank: Rank, case: Case) -> bool:
    """Return whether long steps may be those that wait for the slices of a core that other programs get, which come by the clock."""
    waits = case.shared_wait >= max(rank.stall_share, limits.MAJORITY)
    return waits and rank.stalls.typical - rank.stalls.median < limits.HICCUP_S


def _without_core(rank: Rank, case: Case) -> float:
    """Return the share of the loop by which long steps exceed what their own work explains, if usual steps wait as well.

    On a machine that others use, any step may wait, and so do the ranks that meet there. A step with more work also waits
    more often, in proportion; what usual steps wait is no part of it.
    """
    usual, long = case.metrics.samples.waited.get(rank.name, (0.0, 0.0))
    stalls, length = rank.stalls, rank.iterations.length
    taken, rest = (float(length[rows].sum()) * rank.scale for rows in (stalls.long, ~stalls.long))
    worked = max(rest - usual, limits.FLOOR * rest)
    if rank.loop <= 0 or worked <= 0 or not stalls.count:
        return 0.0
    own = max(taken - long, 0.0) - worked * stalls.count / max(len(length) - stalls.count, 1)
    return min(max(stalls.excess - max(own, 0.0) * rest / worked, 0.0), long) / rank.loop


# --- since a moment -------------------------------------------------------------------------------------------------

_CHANCE = 2 * (1 - NormalDist().cdf(limits.BEYOND_CHANCE))  # that some moment of a steady loop looks like a change
# System metrics whose change is worth naming → name, unit, and the least ratio.
METRICS = {
    "gpu_clock": ("GPU clock", "MHz", 1 + limits.FAR),
    "gpu": ("mean GPU use", "percent", limits.CLEARLY),
    "swap_in": ("memory swapped in", "bytes/s", limits.CLEARLY),
    "io_wait": ("I/O wait", "percent", limits.CLEARLY),
    "cpu": ("mean CPU use", "percent", limits.CLEARLY),
    "memory": ("memory in use", "percent", limits.CLEARLY),
    "disk_read": ("disk reads", "bytes/s", limits.CLEARLY),
    "disk_write": ("disk writes", "bytes/s", limits.CLEARLY),
    "received": ("network input", "bytes/s", limits.CLEARLY),
}
MAX_CHANGES = 3


@attrs.frozen
class Change:
    """A moment from which on a loop is slower.

    Attributes:
        at: number of the iteration (row) with which the slow steps begin.
        before, after: usual length of an iteration, seconds.
        grows: seconds by which each iteration is longer than the one before it; 0 if they become slower at once.
    """

    at: int
    before: float
    after: float
    grows: float = 0.0

    @property
    def gradual(self) -> bool:
        """True if the steps become slower little by little."""
        return self.grows > 0

    def lost(self, lengths: Floats) -> Floats:
        """Return the seconds by which each iteration is longer than the first ones.

        If the steps grow, they do so from the first one on, and not from the moment that divides them best.
        """
        rows = np.arange(len(lengths))
        beyond = self.grows * rows if self.gradual else np.where(rows >= self.at, self.after - self.before, 0.0)
        return np.minimum(beyond, lengths)

    @property
    def factor(self) -> float:
        """Length of the slow steps as a multiple of the usual one."""
        return self.after / self.before


def find_change(lengths: Floats) -> Change | None:
    """Find the moment from which on iterations are longer (Pettitt's test on the medians of blocks, or on their fast steps).

    Ranks of medians make the test indifferent to outliers and periodic stalls, and its chance of a false alarm covers all
    moments that it compares. Other programs only add to steps, so the fast ones show what they may hide.
    """
    return _change_of(lengths, 0.5) or _change_of(lengths, thresholds.RARE)


def _change_of(lengths: Floats, quantile: float) -> Change | None:
    size = max(len(lengths) // limits.BLOCKS[0], limits.BLOCKS[1])
    count = len(lengths) // size
    if count < 2:
        return None
    blocks = np.quantile(lengths[: count * size].reshape(count, size), quantile, axis=1)
    larger = np.sign(blocks[None, :] - blocks[:, None])  # of each pair, whether the second is longer
    scores = np.asarray([float(larger[:at, at:].sum()) for at in range(1, count)])
    at = int(scores.argmax()) + 1
    chance = float(np.exp(-6 * scores[at - 1] ** 2 / (count**3 + count**2)))
    if chance > _CHANCE or min(at, count - at) < thresholds.RARE * count:
        return None
    before, after = float(np.median(blocks[:at])), float(np.median(blocks[at:]))
    if before <= 0 or after < limits.SLOWER * before:
        return None
    # a change, not noise that grew; blocks of a busy machine may be long, too
    together = 1 - (limits.FLOOR if after < limits.SURELY * before else 1 - limits.MOST)
    if float((larger[:at, at:] > 0).mean()) < together:
        return None
    first = _first_slow(lengths, at * size, size, (before + after) / 2)
    grows = max(growth_of_blocks(blocks, at) / size, 0.0)
    if grows:
        before = min(before, float(np.median(blocks[: math.ceil(count / limits.STRETCHES)])))
    return Change(first, before, after, grows)


def _first_slow(lengths: Floats, near: int, size: int, middle: float) -> int:
    """Return the row near a block's edge that separates short from long iterations best."""
    first, last = max(near - size, 0), min(near + size, len(lengths))
    long = lengths[first:last] > middle
    wrong = np.concatenate([[0], np.cumsum(long)]) + np.concatenate([np.cumsum(~long[::-1])[::-1], [0]])
    return first + int(wrong.argmin())


def largest_slowdown(case: Case) -> tuple[float, Rank, Change] | None:
    """Return the share of the loop that the costliest change takes, with its rank; None if it takes too little."""
    best: tuple[float, Rank, Change] | None = None
    for rank in case.ranks:
        settled = np.flatnonzero((rank.iterations.index >= thresholds.WARM_UP_STEPS) & ~_beside_compiling(rank, case))
        change = find_change(rank.iterations.length[settled])
        if change is None:
            continue
        change = attrs.evolve(change, at=int(settled[change.at]))
        lost = float(change.lost(rank.iterations.length).sum()) * rank.scale / rank.loop if rank.loop > 0 else 0.0
        if best is None or lost > best[0]:
            best = lost, rank, change
    return None if best is None or best[0] < limits.FLOOR else best


def _beside_compiling(rank: Rank, case: Case) -> Mask:
    """Return the iterations that are no measure of how long a step takes, because a function is compiled in them, or soon after.

    What compiled functions compute goes on behind the compilation of the next one. If that takes as long as the steps
    before it, since the last compilation, they may have left all of their work to it.
    """
    index, length = rank.iterations.index, rank.iterations.length
    rows = next((own for own in case.ledger.ranks if own.name == rank.name), None)
    if rows is None:  # its steps have no duration
        return np.zeros(len(index), np.bool_)
    spent = sum((rows.seconds[name] for name in (COMPILING, AGAIN) if name in rows.seconds), np.zeros(len(rows.steps)))
    compiles = np.isin(index, rows.steps[spent > 0])
    if not compiles.any() or compiles.all() or not rank.seconds["compiled"]:
        return compiles
    usual = float(np.median(length[~compiles]))
    stretch: Ints = np.cumsum(compiles) - compiles  # each ends with a compilation
    ends = np.flatnonzero(compiles)
    hides = np.append(length[ends] >= usual * np.bincount(stretch)[: len(ends)], False)
    return compiles | np.asarray(hides[stretch], np.bool_)


def slowdown(case: Case) -> Found | None:
    """Find the moment from which on the loop is slower, and what else changed then."""
    best = largest_slowdown(case)
    if best is None:
        return None
    lost, rank, change = best
    alone = _alone(case.ranks, rank, change) if case.in_step else None
    if alone is not None:  # the others only show where they wait for it
        rank, change = alone, _on(alone, rank, change)
    others = _others(case.metrics, rank, change)
    busier = others is not None and others[1] >= others[0] + limits.MAJORITY
    part, agreement = _grown_part(rank, change)
    waits = _core_waits(case.metrics, rank, change)
    own = change.after - max(waits[1] * change.after - waits[0] * change.before, 0.0)
    if own < limits.SLOWER * change.before:
        return None  # the script does the same, and waits for a core that others use
    if own <= _growth_of_inputs(case.metrics, rank, change) ** 2 * change.before:
        return None  # attention takes the square of what its input grows by, and the rest of a model less
    together = agreement < thresholds.SAME_PART or _grew_alike(rank, change)
    crowded = busier or waits[1] >= waits[0] + limits.FLOOR
    if crowded and together and own < limits.SURELY * change.before:
        return None  # all parts are slower together, as on a machine that others use, too
    moment, step = float(rank.iterations.start[change.at]), int(rank.iterations.index[change.at])
    evidence = [
        Evidence("time lost in slow steps", round(lost, 4), None, rank.name, "share"),
        Evidence("usual step since then", round(change.after * 1e3, 3), round(change.before * 1e3, 3), rank.name, "ms", "before"),
        Evidence("times as long", round(change.factor, 2), limits.SLOWER, rank.name),
        Evidence("step of the change", step, None, rank.name),
        Evidence("time of the change after the start of the loop", round(moment - rank.start, 1), None, rank.name, "s"),
    ]  # fmt: skip
    if others is not None and busier:
        used = round(others[1], 2), round(others[0], 2)
        evidence.append(Evidence("CPU cores that others use", *used, rank.node, "", "before"))
    if waits[1] >= waits[0] + limits.FLOOR:
        waited = round(waits[1], 4), round(waits[0], 4)
        evidence.append(Evidence("time waiting for a core", *waited, rank.name, "share", "before"))
    evidence += _changes(case.metrics, rank, moment)
    where = lines_since(case.metrics, rank, moment, part if agreement >= thresholds.SAME_PART else "")
    if not where and rank.name in case.metrics.samples.course:
        evidence.append(Evidence("lines of the script that take longer than before", "none", None, rank.name))
    words = {
        "step": f"{step:,}",
        "moment": duration(moment - rank.start),
        "how": "become slower and slower" if change.gradual else "are slower",
        "after": duration(change.after),
        "before": f"{duration(change.before)}{' at first' if change.gradual else ''}",
        "during": parts.during(part),
        "who": "" if len(case.ranks) <= 1 else f", by rank {alone.name} alone" if alone else ", on all ranks",
        "share": percent(lost),
        "node": alone.node if alone else "",
        "name": alone.name if alone else "",
    }
    advice = "slow_rank" if alone else "slow_input" if part == "wait" else "slower" if change.gradual else "slow_since"
    sure = agreement >= thresholds.SAME_PART and others is not None and not busier
    return Found(
        "slowdown", words, tuple(evidence), lost, f"slowdown_{advice}", partial(_slowdown_saved, rank, change, _grown(case, rank, change)),
        "several parts grew, or other programs began to work" if not sure else case.by_others(0.0), 0.0,
        where, ranks=(alone.name,) if alone else (),
    )  # fmt: skip


def _growth_of_inputs(metrics: JobMetrics, rank: Rank, change: Change) -> float:
    """Return how many times as large the model's inputs are in the slow steps as before, at least 1."""
    sizes = metrics.input_sizes.get(rank.name, np.zeros((0, 2)))
    if change.gradual:  # the first steps and the last ones differ most
        before, after = sizes[: len(sizes) // 4, 1], sizes[-len(sizes) // 4 :, 1]
    else:
        slow = sizes[:, 0] >= rank.iterations.index[change.at]
        before, after = sizes[~slow, 1], sizes[slow, 1]
    if min(len(before), len(after)) < limits.REPEATS:
        return 1.0
    return max(float(np.median(after) / np.median(before)), 1.0)


def slow_since(loop: Loop, step: int) -> Mask:
    """Return the rows of a loop since a step, without the row after the last step."""
    return (loop.index >= step) & (np.arange(len(loop.index)) < loop.steps)


def _grown(case: Case, rank: Rank, change: Change) -> dict[str, float]:
    """Return the activities that grew with a change, the one that grew most first, with their shares of all growth."""
    if case.loop is None:
        return {}
    slow = slow_since(case.loop, int(rank.iterations.index[change.at]))
    if not slow.any() or slow.all():
        return {}
    grown = {name: max(float(row[slow].mean() - row[~slow].mean()), 0.0) for name, row in case.loop.left.items()}
    order = sorted(
        (name for name in grown if grown[name] > limits.SHOWN * sum(grown.values())), key=lambda name: -grown[name]
    )
    return {name: grown[name] / sum(grown[one] for one in order) for name in order}


def _slowdown_saved(rank: Rank, change: Change, grown: dict[str, float], loop: Loop) -> Saving | None:
    """Make all steps as long as the first ones, or as those before the slowdown, in the activities that grew.

    At least, steps that become slower little by little are made as long as those before the moment that divides them best.
    """

    def removed(seconds: Floats) -> Floats:
        lost = loop.placed(rank.iterations.index, seconds)
        rows = [np.minimum(lost * part, loop.of_activity(name)) for name, part in grown.items()]
        return np.asarray(np.sum(rows, axis=0))

    if not grown:
        return None
    least, value, most = limits.SAVED
    lost = change.lost(rank.iterations.length)
    later = np.where(np.arange(len(lost)) >= change.at, np.maximum(lost - np.median(lost[: change.at]), 0.0), 0.0)
    whole = removed(lost)
    low = float(removed(later).sum()) / max(float(whole.sum()), 1e-12) if change.gradual else 1.0
    scale = (low + 1) / 2 * value
    certain = least / scale  # that so much has been lost, and not that a repair saves it
    return Saving(whole * scale, least * low / scale, most / scale, tuple(grown), strict=True, certain=certain)


def _grown_part(rank: Rank, change: Change) -> tuple[str, float]:
    """Return the part that grew most, and its share of all growth."""
    grown = {key: max(_growth(rank, key, change), 0.0) for key in parts.iteration_keys()}
    part = max(grown, key=lambda key: grown[key])
    total = sum(grown.values())
    return (part, grown[part] / total) if total > 0 else (parts.UNKNOWN, 0.0)


def _grew_alike(rank: Rank, change: Change) -> bool:
    """Return whether every part grew in proportion to its length, as if the machine were slower."""
    keys = parts.iteration_keys()
    grown = np.asarray([_growth(rank, key, change) for key in keys])
    known = rank.iterations.known[: change.at]
    usual = np.asarray(
        [float(np.median(rank.iterations.of(key)[: change.at][known])) if known.any() else 0.0 for key in keys]
    )
    lengths = float(np.linalg.norm(grown) * np.linalg.norm(usual))
    return lengths > 0 and float(grown @ usual) / lengths >= thresholds.SAME_WAY


def _growth(rank: Rank, key: str, change: Change) -> float:
    """Return by how many seconds an iteration's part is longer after the change."""
    values, known = rank.iterations.of(key), rank.iterations.known
    early = values[: change.at][known[: change.at]]
    late = values[change.at :][known[change.at :]]
    return float(np.median(late) - np.median(early)) if len(early) and len(late) else 0.0


def _alone(ranks: Sequence[Rank], rank: Rank, change: Change) -> Rank | None:
    """Return the rank whose own work grew while the others wait for it; None if there is none.

    Args:
        ranks: all ranks.
        rank, change: the rank in which the change was found, and the change.
    """
    moments = [_on(one, rank, change) for one in ranks]
    for meeting in parts.MEETINGS:
        work = [key for key in parts.iteration_keys() if key != meeting]
        grown = np.asarray(
            [sum(_growth(one, key, moment) for key in work) for one, moment in zip(ranks, moments, strict=True)]
        )
        most = int(grown.argmax())
        others = float(np.median(np.delete(grown, most)))
        if grown[most] - others >= limits.MAJORITY * (change.after - change.before):
            return ranks[most]
    return None


def _on(other: Rank, rank: Rank, change: Change) -> Change:
    """Return a change of a rank at the row that has the same step in another rank, of which other steps may be left out."""
    step = rank.iterations.index[change.at]
    return attrs.evolve(change, at=int(np.searchsorted(other.iterations.index, step)))


def _core_waits(metrics: JobMetrics, rank: Rank, change: Change) -> tuple[float, float]:
    """Return the share of the time in which the rank waits for a core, before and after the change."""
    usage, moment = metrics.usage.get(rank.name), float(rank.iterations.start[change.at])
    if usage is None:
        return 0.0, 0.0
    return usage.core_wait(rank.start, moment), usage.core_wait(moment, rank.end)


def _others(metrics: JobMetrics, rank: Rank, change: Change) -> tuple[float, float] | None:
    """Return the CPU cores that others than the training processes use on the rank's node, before and after the change."""
    moment = float(rank.iterations.start[change.at])
    before, after = (cores_of_others(metrics, rank.node, *span) for span in ((rank.start, moment), (moment, rank.end)))
    return None if before is None or after is None else (before, after)


def _changes(metrics: JobMetrics, rank: Rank, moment: float) -> list[Evidence]:
    """Return the system metrics of the rank's node that changed most with the moment."""
    found: list[tuple[float, Evidence]] = []
    for metric, (name, unit, enough) in METRICS.items():
        for (node, device), data in metrics.system.of(metric).items():
            if node != rank.node:
                continue
            before, after = data.mean_within(rank.start, moment), data.mean_within(moment, rank.end)
            low, high = sorted((before, after))
            if not np.isfinite(low + high) or high - low < (100 * limits.FAR if unit == "percent" else 0.0):
                continue
            ratio = high / max(low, 1e-9)
            if ratio >= enough and (unit != "bytes/s" or high >= limits.TRICKLE):  # logs and metrics cause less
                where = f"{node} {device}".strip()
                found.append((ratio / enough, Evidence(name, round(after, 1), round(before, 1), where, unit, "before")))
    found.sort(key=lambda one: -one[0])
    return [evidence for _, evidence in found[:MAX_CHANGES]]
