"""Long steps among the turns of a loop: which, what they cost, where in the turn, and whether they come with a period."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import numpy as np

from sm_profiler.report import policy

if TYPE_CHECKING:
    from sm_profiler.formats.columns import Floats, Ints, Mask
    from sm_profiler.report.iterations import Turns

MAX_PERIOD = 100_000  # steps


@attrs.frozen(eq=False)
class Stalls:
    """What was found.

    Attributes:
        long: which turns are long.
        median: seconds, of all turns.
        excess: seconds that the long turns take beyond the median.
        share: excess as a share of all turns.
        period: every so many steps, or None.
        exact: whether the period holds to the step (else: about).
        where: the part of the turn in which most of the excess lies: wait, forward, backward, optimizer or outside.
        typical: seconds a long turn takes, median.
        agreement: share of the lost time that lies in turns in which that part grows most.
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

    @property
    def count(self) -> int:
        """Number of long turns."""
        return int(self.long.sum())

    @property
    def is_rare(self) -> bool:
        """Long turns are exceptions, not the way the loop works."""
        return self.count > 0 and self.long.mean() <= policy.RARE.value


PARTS = ("wait", "forward", "backward", "optimizer", "outside")


def find_stalls(turns: Turns) -> Stalls:
    """Look for long turns; the first few of the job do not count.

    On a busy machine all steps vary, and a stall that repeats may not stand out of whole turns; then it does in the part
    in which it lies, so the parts are looked at where whole turns show no period.
    """
    found = _long_in(turns, turns.length)
    if found.period is not None or len(turns) < policy.MIN_STEPS.value or not turns.known.all():
        return found
    parts = [one for name in PARTS if (one := _long_in(turns, getattr(turns, name))).period is not None and one.exact]
    best = max(parts, key=lambda one: one.share, default=found)
    return best if best.share >= policy.STALL_COST.value else found


def _long_in(turns: Turns, values: Floats) -> Stalls:
    """Turns that are long because of `values`: their whole length, or a part of them."""
    nothing = Stalls(np.zeros(len(turns), np.bool_), float(np.median(turns.length)) if len(turns) else 0.0)
    if len(turns) < policy.MIN_STEPS.value:
        return nothing
    usual, middle = float(np.median(values)), nothing.median
    spread = float(np.median(np.abs(values - usual)))
    beyond = max(
        (policy.LONG_STEP.value - 1) * middle, policy.LONG_STEP_MADS.value * spread, policy.LONG_STEP_MS.value / 1e3
    )  # fmt: skip
    long = values > usual + beyond
    long[turns.index < policy.WARM_UP_STEPS.value] = False
    total = float(turns.length.sum())
    if not long.any() or long.mean() > policy.MANY_LONG.value or total <= 0:
        return nothing
    excess = values[long] - usual
    period, exact = find_period(turns.index[long], excess, int(turns.index[-1]))
    if period is None:  # jitter beside a few really long turns is not what costs the time
        long[long] = excess >= policy.JITTER.value * _heavy_median(excess)
        excess = values[long] - usual
    part, agreement = _where(turns, long)
    return Stalls(
        long, middle, float(excess.sum()), float(excess.sum()) / total, period, exact, part,
        float(np.median(turns.length[long])), agreement,
    )  # fmt: skip


def _where(turns: Turns, long: Mask) -> tuple[str, float]:
    """The part of the turn that grows most in long turns, and how much of the lost time lies in turns where it does.

    A cause hits the same part each time; the noise of a busy machine hits now this part, now that.
    """
    rows = long & turns.known
    if not rows.any():
        return "unknown", 1.0
    grown = []
    for name in PARTS:
        values = getattr(turns, name)
        usual = values[~long & turns.known]
        grown.append(values[rows] - (np.median(usual) if len(usual) else 0.0))
    table = np.asarray(grown)
    part = int(table.sum(axis=1).argmax())
    weight = np.maximum(table.sum(axis=0), 0.0)
    agrees = table.argmax(axis=0) == part
    return PARTS[part], float(weight[agrees].sum() / weight.sum()) if weight.sum() > 0 else 1.0


def _heavy_median(excess: Floats) -> float:
    """The excess below which half of all lost time lies."""
    ordered = np.sort(excess)
    sums = np.cumsum(ordered)
    return float(ordered[np.searchsorted(sums, sums[-1] / 2)])


def find_period(
    places: Ints, weights: np.ndarray[tuple[int], np.dtype[np.float64]], last: int
) -> tuple[int | None, bool]:
    """The number of steps between events at `places`, if they come regularly; and whether exactly.

    A period holds exactly if most of the weight lies on one residue, and nearly all places of this residue have an event.
    Else it holds about if the gaps hardly vary, as with something that happens by the clock.
    """
    repeats = int(policy.PERIOD_REPEATS.value)
    if len(places) < repeats:
        return None, False
    gaps = np.diff(places)
    match = policy.PERIOD_MATCH.value
    best: tuple[float, int] | None = None
    for period in np.unique(gaps[(gaps > 1) & (gaps <= MAX_PERIOD)])[:500]:
        residues = places % period
        weight = np.bincount(residues, weights)
        residue = int(weight.argmax())
        on_it = residues == residue
        possible = len(range(residue, last + 1, int(period)))
        missed = max(possible - int(on_it.sum()) - 1, 0)  # one may fall into the warm-up or behind the last step
        seen = int(on_it.sum())
        share = float(weight[residue] / weights.sum())
        if (
            seen >= repeats
            and share >= policy.PERIOD_COST.value
            and seen >= match * (seen + missed)
            and (best is None or share > best[0])
        ):
            best = share, int(period)
    if best is not None:
        return best[1], True
    middle = float(np.median(gaps))
    regular = np.abs(gaps - middle) <= max(1.0, 0.15 * middle)
    if middle > 2 and regular.mean() >= match and len(gaps) >= repeats:  # noqa: PLR2004 - what the number means stands in the line
        return round(middle), False
    return None, False
