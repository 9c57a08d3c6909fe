"""Find long steps: their cost, the part of the iteration that grew, and their period if they have one."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING

import attrs
import numpy as np

from sm_profiler.metrics import parts, thresholds

if TYPE_CHECKING:
    from sm_profiler.formats.columns import Floats, Ints, Mask
    from sm_profiler.metrics.step_sample import Judged

from sm_profiler.formats.columns import Floats, Ints, Mask
from sm_profiler.metrics.attempts import same_attempt
from sm_profiler.metrics.parts import PartTable
from sm_profiler.metrics.step_fold import GC, OWN, OWN_IN_STEP, QUEUED, RESULTS, TRAIN, StepRows, column

_ANY = 1e-7  # seconds; less is rounding


@attrs.frozen(eq=False)
class Iterations:
    """Iterations of one process, each from the end of a training step to the end of the next: a step and its wait.

    The hook may record the phases of every nth step only; steps themselves are always recorded.

    Attributes:
        index: number of the step that ends the iteration, counted over the training steps of the process.
        start: seconds since the epoch.
        length: seconds.
        seconds: part of the iteration → seconds, 0 where `known` is False.
        gc: seconds of garbage collection.
        known: whether the phases of the step were recorded.
        place: number of the step among the training steps that `Rank.steps` holds; `index` if it holds all.
        weight: iterations of its length that each represents: those around it whose phases were not recorded; 0 for these.
    """

    index: Ints
    start: Floats
    length: Floats
    seconds: dict[str, Floats]
    gc: Floats
    known: Mask
    place: Ints = attrs.field()
    weight: Floats = attrs.field()

    @place.default
    def _all_are_held(self) -> Ints:
        return self.index

    @weight.default
    def _each_for_itself(self) -> Floats:
        return self.known.astype(np.float64)

    def __len__(self) -> int:
        return len(self.length)

    def of(self, key: str) -> Floats:
        """Return the seconds of a part, or the length for `parts.WHOLE`."""
        return self.length if key == parts.WHOLE else self.seconds[key]


def iterations_of(
    steps: StepRows,
    waits: Floats,
    breaks: tuple[int, ...] = (),
    *,
    on_device: bool = False,
    index: Ints | None = None,
) -> Iterations:
    """Turn the steps of a process into iterations, without those that start in evaluation or in an earlier attempt.

    In a loop that evaluates before most of its training steps, as one that acts and learns in turns, they start with the
    end of the evaluation.

    Args:
        steps: the steps.
        waits: seconds each step waited for data.
        breaks: rows that start a new attempt.
        index: number of each step, counted over all training steps; default: as the rows count them.
        on_device: the phases are those of a GPU, which may still run when the host has finished its step.
    """
    train = steps.mode == TRAIN
    after_any = train[1:] & same_attempt(steps, breaks)
    after_train = after_any & train[:-1]
    in_turns = np.count_nonzero(after_train) < thresholds.IN_TURNS * np.count_nonzero(train)
    rows = np.flatnonzero(after_any if in_turns else after_train) + 1
    ends = np.maximum.accumulate(steps.end / 1e6) if len(steps) else steps.end  # steps of several threads may overlap
    own = steps.seconds(OWN)[rows]
    length = ends[rows] - ends[rows - 1] - own
    measured = own <= np.maximum(length, 0.0)  # of the others, the rest is an error of what the profiler took
    rows, length = rows[measured], np.maximum(length[measured], 0.0)
    seconds = {part.key: steps.seconds(part.key)[rows] for part in parts.phases()}
    phases = np.sum(list(seconds.values()), axis=0)
    step = steps.duration[rows] / 1e6 - steps.seconds(OWN_IN_STEP)[rows]
    # waiting for results is recorded for every step
    called = phases - steps.seconds(RESULTS)[rows] - steps.seconds(QUEUED)[rows]
    known = (called > _ANY) | ((waits[rows] > 0) & (not on_device))
    if not known.any():
        known = phases > 0
    if not known.any():  # only steps were recorded: all of a step counts as work
        known = np.ones(len(rows), np.bool_)
    fits = np.minimum(length / np.maximum(phases + waits[rows], 1e-12), 1.0)  # overlapping parts take no more than all
    # Pages of zeros that nothing writes to take no memory: most jobs record some of the parts only.
    seconds = {
        key: spent * fits if spent.any() else np.zeros(len(fits))
        for key, spent in (*seconds.items(), ("wait", waits[rows]))
    }
    used = np.where(phases > 0, phases * fits, step)
    outside = np.where(known, np.maximum(length - seconds["wait"] - used, 0.0), 0.0)
    seconds[parts.DECLARED] = np.minimum(steps.seconds(parts.DECLARED)[rows], outside)
    seconds["outside"] = outside - seconds[parts.DECLARED]
    index = np.cumsum(train) - 1 if index is None else index
    return Iterations(
        index[rows].astype(np.int64), ends[rows - 1], length, seconds, steps.seconds(GC)[rows], known
    )  # fmt: skip


def strata(moment: Floats, recorded: Mask, long: Mask) -> Ints:
    """Return for each step the number of its stratum: steps next to each other, of which at least a few were recorded.

    Phases are recorded densely at first and ever more rarely later, so that the average of what was recorded is that of the
    beginning: what is usual in a loop changes, as when a dataset keeps what it read in the first epoch. Long steps have
    strata of their own, if any of them was recorded.

    Args:
        moment: of each step, ascending.
        recorded: whether its phases were recorded; at least one of them.
        long: whether it is much longer than usual.
    """
    found, first, each = np.zeros(len(moment), np.int64), 0, int(thresholds.STRATUM)
    for alike in (long, ~long):
        own = bool((recorded & alike).any())
        known = np.flatnonzero(recorded & alike if own else recorded)
        ends = np.arange(each, len(known) - each + 1, each)
        edges = (moment[known[ends - 1]] + moment[known[ends]]) / 2
        found[alike] = np.searchsorted(edges, moment[alike]) + (first if own else 0)
        first += len(edges) + 1 if own else 0
    return found


def weighted(iterations: Iterations, long: Mask) -> Iterations:
    """Return iterations with their weights; they count by their length without collections, which are rare and long."""
    known = iterations.known
    if known.all() or not known.any():
        return iterations
    length = np.maximum(iterations.length - iterations.gc, 0.0)
    stratum = strata(iterations.start, known, long)
    whole, recorded = np.bincount(stratum, length), np.bincount(stratum, length * known)
    weight = (whole / np.where(recorded > 0, recorded, np.inf))[stratum]
    return attrs.evolve(iterations, weight=weight * known)


def as_run_on_device(steps: StepRows) -> StepRows | None:
    """Return the steps with the GPU's phases in place of the host's, or None if too few steps have them.

    The host only launches: it has finished a forward pass before the GPU has started it, and the GPU's time appears where
    the host next asks for a result. Waiting for data counts only while the GPU has no work. Steps whose phases on the
    GPU were not recorded have no phases.
    """
    train = steps.mode == TRAIN
    phases = parts.phases()
    device = np.sum([steps.seconds(part.key, on_device=True) for part in phases], axis=0) * 1e6
    known = device > 0
    if np.count_nonzero(known & train) < thresholds.MIN_STEPS:
        return None
    found = {column(part.key): steps.parts[:, column(part.key, on_device=True)] for part in phases}
    ends = steps.end
    length = np.diff(ends, prepend=ends[0] - steps.duration[0])
    idle = np.where(known, np.maximum(length - device, 0.0), 0.0)
    found[column("wait")] = np.minimum(steps.parts[:, column("wait")], idle)
    return attrs.evolve(steps, parts=PartTable.of(steps.parts).with_columns(found))


MAX_CANDIDATES = 500  # gaps tried as periods; bounds the time for loops with very irregular steps


@attrs.frozen(eq=False)
class Stalls:
    """Long iterations of one process.

    Attributes:
        long: mask of the long iterations.
        median: median length of all iterations, seconds.
        excess: seconds that the long iterations take beyond the median.
        share: excess as a share of all iterations.
        period: steps from one long step to the next, or None.
        exact: the period holds to the step; otherwise approximately.
        where: key of the part with most of the excess, or `parts.UNKNOWN`.
        typical: median length of the long iterations, seconds.
        agreement: share of the excess in iterations that grew in the same way.
        collected: seconds of the excess spent in garbage collections.
        grown: keys of the parts that grew together, `where` first.
    """

    long: Mask
    median: float = 0.0
    excess: float = 0.0
    share: float = 0.0
    period: int | None = None
    exact: bool = False
    where: str = ""
    typical: float = 0.0
    agreement: float = 1.0
    collected: float = 0.0
    grown: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        """Number of long iterations."""
        return int(self.long.sum())

    @property
    def is_rare(self) -> bool:
        """True if long iterations are exceptions and not how the loop works."""
        return self.count > 0 and self.long.mean() <= thresholds.RARE


def find_stalls(iterations: Iterations) -> Stalls:
    """Find the long iterations, without those of the warm-up.

    On a busy machine all steps vary, and a repeated stall may not be visible in single iterations, but in the rank of all
    of its period, or in the part that it hits. So both are searched for a period if long iterations have none.
    """
    found = _long_in(iterations, iterations.length)
    if found.period is not None or len(iterations) < thresholds.MIN_STEPS:
        return found
    regular = _at_intervals(iterations)
    if regular is not None and regular.share >= max(thresholds.FLOOR, found.share * thresholds.PERIOD_COST):
        return regular
    if not iterations.known.all():
        return found
    by_part = [_long_in(iterations, iterations.of(key)) for key in parts.iteration_keys()]
    periodic = [one for one in by_part if one.period is not None and one.exact]
    best = max(periodic, key=lambda one: one.share, default=found)
    return best if best.share >= thresholds.FLOOR else found


def of_all(found: Stalls, iterations: Iterations, judged: Judged) -> Stalls:
    """Return the stalls of all steps from those of a sample; the longest steps of all are known one by one."""
    if not found.long.any():
        return found
    long = iterations.length[found.long]
    least = float(judged.longest.min()) if len(judged.longest) else np.inf
    excess = found.excess * judged.scale
    if found.period is None and (shorter := long < least).any() and judged.scale > 1:
        beyond = long - found.median
        share = float(beyond[shorter].sum() / beyond.sum()) if beyond.sum() > 0 else 1.0
        excess = excess * share + float((judged.longest - found.median).sum())
    return attrs.evolve(found, excess=excess, collected=found.collected * judged.scale)


def _at_intervals(iterations: Iterations) -> Stalls | None:
    """Find the period whose iterations rank highest among all by their length; None if they may do so by chance.

    They need not be twice as long as others, unless they are so in the passes: a quarter more there is how loops work that
    add up gradients, or train two networks in turns.
    """
    warm = iterations.index >= thresholds.WARM_UP_STEPS
    index, length, middle = iterations.index[warm], iterations.length[warm], float(np.median(iterations.length))
    count = len(index)
    if count < thresholds.MIN_STEPS or length.mean() - middle < thresholds.FLOOR * length.mean():
        return None
    rank, best = length.argsort(kind="stable").argsort(kind="stable") + 1.0, (0.0, 1, 0)
    for period in range(2, min(count // int(thresholds.PERIOD_REPEATS), MAX_CANDIDATES) + 1):
        own = index % period
        each = np.bincount(own, minlength=period)
        tested = (each >= thresholds.PERIOD_REPEATS) & (each < count)
        error = np.sqrt((count + 1) * (count - each) / (12 * np.maximum(each, 1)))
        beyond = np.bincount(own, rank, period) / np.maximum(each, 1) - (count + 1) / 2
        sigmas = np.where(tested, beyond / np.maximum(error, 1e-12), 0.0)
        best = max(best, (float(sigmas.max()), period, int(sigmas.argmax())))
    sigmas_of_best, period, residue = best
    long = (iterations.index % period == residue) & (iterations.index >= thresholds.WARM_UP_STEPS)
    chance = (1 - NormalDist().cdf(sigmas_of_best)) * period * (period + 1) / 2
    if chance > thresholds.PERIOD_CHANCE or not long.any() or long.mean() > thresholds.MANY_LONG:
        return None
    typical, usual = float(np.median(iterations.length[long])), float(np.median(iterations.length[~long]))
    excess, total = (typical - usual) * int(long.sum()), float(iterations.length.sum())
    grown, agreement = _grown_parts(iterations, long)
    if typical < thresholds.LONG_STEP * usual and grown[0] not in ("outside", "wait", parts.DECLARED):
        return None
    collected = float(np.minimum(iterations.gc[long], typical - usual).sum())
    return Stalls(long, middle, excess, excess / total, period, True, grown[0], typical, agreement, collected, grown)


def _long_in(iterations: Iterations, values: Floats) -> Stalls:
    """Find iterations that are long because of `values`: their length, or the time of one part."""
    nothing = Stalls(
        np.zeros(len(iterations), np.bool_), float(np.median(iterations.length)) if len(iterations) else 0.0
    )
    if len(iterations) < thresholds.MIN_STEPS:
        return nothing
    usual, middle = float(np.median(values)), nothing.median
    spread = float(np.median(np.abs(values - usual)))
    beyond = max((thresholds.LONG_STEP - 1) * middle, thresholds.LONG_STEP_MADS * spread, thresholds.LONG_STEP_MS / 1e3)
    long = values > usual + beyond
    longer = values > usual + max((thresholds.LONG_STEP - 1) * middle, thresholds.LONG_STEP_MS / 1e3)
    for mask in (long, longer):
        mask[iterations.index < thresholds.WARM_UP_STEPS] = False
    total = float(iterations.length.sum())
    if not long.any() or long.mean() > thresholds.MANY_LONG or total <= 0:
        return nothing
    excess = values[long] - usual
    held = None if iterations.place is iterations.index else iterations.index
    period, exact = find_period(
        iterations.index[long], excess, int(iterations.index[-1]), held, longer=iterations.index[longer]
    )
    if exact and period is not None:  # other long iterations are the noise of the machine
        residue = int(np.bincount(iterations.index[long] % period, excess).argmax())
        long = longer & (iterations.index % period == residue)
        excess = values[long] - usual
    if period is None:  # beside a few really long iterations, jitter costs nothing
        long[long] = excess >= thresholds.JITTER * _weighted_median(excess)
        excess = values[long] - usual
    grown, agreement = _grown_parts(iterations, long)
    return Stalls(
        long, middle, float(excess.sum()), float(excess.sum()) / total, period, exact, grown[0],
        float(np.median(iterations.length[long])), agreement,
        float(np.minimum(iterations.gc[long], excess).sum()), grown,
    )  # fmt: skip


def _grown_parts(iterations: Iterations, long: Mask) -> tuple[tuple[str, ...], float]:
    """Return the parts that grow in long iterations, most first, and the share of the lost time that grew like this.

    A cause makes the same part, or the same parts together, grow each time; the noise of a busy machine hits varying
    parts. Both are tested: the share of the time in iterations that grew most in the same part, and the share in those
    whose growth has the direction of the growth of all.
    """
    rows = long & iterations.known
    if not rows.any():
        return (parts.UNKNOWN,), 1.0
    keys = parts.iteration_keys()
    grown = []
    for key in keys:
        values = iterations.of(key)
        usual = values[~long & iterations.known]
        grown.append(values[rows] - (np.median(usual) if len(usual) else 0.0))
    table = np.asarray(grown)
    total = table.sum(axis=1)
    largest = int(total.argmax())
    weight = np.maximum(table.sum(axis=0), 0.0)
    if weight.sum() <= 0:
        return (keys[largest],), 1.0

    def share_of(agrees: Mask) -> float:
        return float(weight[agrees].sum() / weight.sum())

    lengths = np.linalg.norm(table, axis=0) * np.linalg.norm(total)
    same_way = (total @ table) / np.where(lengths > 0, lengths, 1.0) >= thresholds.SAME_WAY
    of_largest, together = share_of(table.argmax(axis=0) == largest), share_of(same_way)
    if together < thresholds.SAME_PART:
        return (keys[largest],), of_largest
    order = [index for index in np.argsort(-total) if total[index] >= thresholds.GREW_TOO * total[largest]]
    return tuple(keys[index] for index in order), max(of_largest, together)


def _weighted_median(excess: Floats) -> float:
    """Return the excess below which half of all lost time is."""
    ordered = np.sort(excess)
    sums = np.cumsum(ordered)
    return float(ordered[np.searchsorted(sums, sums[-1] / 2)])


def find_period(
    places: Ints, weights: Floats, last: int, held: Ints | None = None, *, longer: Ints | None = None
) -> tuple[int | None, bool]:
    """Find the number of steps between long steps, if they are regular.

    A period is exact if most of the weight is on one residue and nearly all steps of this residue are long. It is
    approximate if the gaps hardly vary, as for something that happens by the clock. In both cases, as many long steps in
    any order would hardly be as regular.

    Args:
        places: numbers of the long steps, ascending.
        weights: time that each of them lost.
        last: number of the last step.
        held: numbers of the steps that are known; default: all up to the last.
        longer: numbers of all steps that are longer than usual, also of those that the noise of the machine hides; by
            default the long ones.

    Returns:
        The period or None, and whether it is exact.
    """
    if len(places) < thresholds.PERIOD_REPEATS:
        return None, False
    gaps, longer = np.diff(places), places if longer is None else longer
    warm, chance = int(thresholds.WARM_UP_STEPS), thresholds.PERIOD_CHANCE
    steps = (last + 1 if held is None else len(held)) - warm
    best: tuple[float, int] | None = None
    for period in np.unique(gaps[(gaps > 1) & (gaps <= thresholds.MAX_PERIOD)])[:MAX_CANDIDATES]:
        residues = places % period
        weight = np.bincount(residues, weights)
        residue = int(weight.argmax())
        seen = int((longer % period == residue).sum())
        every = range(residue, last + 1, int(period))
        possible = len(every) if held is None else int(np.count_nonzero(held % period == residue))
        missed = max(possible - seen - 1, 0)  # one may be in the warm-up or after the last step
        share = float(weight[residue] / weights.sum())
        if (
            (residues == residue).sum() >= thresholds.PERIOD_REPEATS
            and share >= thresholds.PERIOD_COST
            and seen >= thresholds.PERIOD_MATCH * (seen + missed)
            and (best is None or share > best[0])
            and _chance_of_residue(residues == residue, weights, possible - (residue < warm), steps)
            * period
            * (period + 1)
            / 2
            <= chance
        ):
            best = share, int(period)
    if best is not None:
        return best[1], True
    middle = float(np.median(gaps))
    regular = np.abs(gaps - middle) <= max(1.0, thresholds.PERIOD_JITTER * middle)
    if (
        middle > thresholds.LOOSE_PERIOD
        and regular.mean() >= thresholds.PERIOD_MATCH
        and len(gaps) >= thresholds.PERIOD_REPEATS
        and _chance_of_gaps(regular, middle, len(places) / steps) <= chance
    ):
        return round(middle), False
    return None, False


def _chance_of_residue(hits: Mask, weights: Floats, possible: int, steps: int) -> float:
    """Return the chance that as many steps of a residue are among the long ones, if these come in any order.

    Args:
        hits: which of the long steps are of the residue; only those as long as the shortest of these count.
        weights: time that each long step lost.
        possible: number of steps of the residue.
        steps: number of all steps.
    """
    found, drawn = int(hits.sum()), int((weights >= weights[hits].min()).sum())
    whole, each = _log_ways(steps, drawn), range(found, min(possible, drawn) + 1)
    return sum(
        math.exp(_log_ways(possible, own) + _log_ways(steps - possible, drawn - own) - whole)
        for own in each
        if drawn - own <= steps - possible
    )


def _log_ways(count: int, drawn: int) -> float:
    """Return the logarithm of the number of ways to draw some of a number of things."""
    return math.lgamma(count + 1) - math.lgamma(drawn + 1) - math.lgamma(count - drawn + 1)


def _chance_of_gaps(regular: Mask, middle: float, rate: float) -> float:
    """Return the chance that as many gaps are as close to the middle one, if long steps come at any time with a rate."""
    width = max(1.0, thresholds.PERIOD_JITTER * middle)
    first, last = math.ceil(middle - width), math.floor(middle + width)
    one = (1 - rate) ** (first - 1) - (1 - rate) ** last
    tried, found = len(regular) - 1, int(regular.sum()) - 1  # the middle one is close to itself
    return sum(math.comb(tried, each) * one**each * (1 - one) ** (tried - each) for each in range(found, tried + 1))
