"""Slices of the loop's time, as the page and the terminal show them."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.profile.case import NO_LOADER, declared_shares, waits_recorded
from sm_profiler.formatting import duration, percent, shorten
from sm_profiler.metrics import parts
from sm_profiler.metrics.job_metrics import Rank
from sm_profiler.printable import printable

MIN_NAMED = 0.0005  # smaller shares are drawn but not in the legend
MAX_DECLARED = 5  # phases of the script with a slice of their own; the others share one
MAX_NAME = 40
WHOLE_STEPS = "Steps"  # of which no phases were recorded
NOT_RECORDED = "not recorded"


@attrs.frozen
class Slice:
    """A part of the loop, averaged over ranks.

    Attributes:
        part: the part.
        label: its name, marked if a GPU's times are shown.
        share: share of the loop, 0 to 1.
        value: the share as text, or NOT_RECORDED.
        note: time a step, or why it was not recorded.
    """

    part: parts.Part
    label: str
    share: float
    value: str
    note: str

    @property
    def is_named(self) -> bool:
        """True if the slice belongs in the legend: large enough, or missing."""
        return self.share >= MIN_NAMED or self.value == NOT_RECORDED


def loop_slices(ranks: Sequence[Rank], *, watched: bool = False) -> list[Slice]:
    """Return the slices in the order of a step; none without a loop. Phases that the script declared have names.

    Args:
        ranks: the processes.
        watched: a hook was there that records each wait for a loader.
    """
    loops = [rank for rank in ranks if rank.loop > 0]
    if not loops:
        return []
    steps = sum(rank.train_steps - rank.left_out for rank in loops) or 1
    whole = sum(rank.loop for rank in loops)
    slices, on_device = [], all(rank.on_device for rank in loops)
    of_steps = [part.key for part in parts.PARTS if part.kind in (parts.Kind.PHASE, parts.Kind.DECLARED)]
    has_phases = any(rank.share(key) > 0 for rank in loops for key in of_steps)

    def note(share: float) -> str:
        return f"{duration(share * whole / steps)} per step"

    for part in parts.PARTS:
        share = sum(rank.share(part.key) for rank in loops) / len(loops)
        if part.kind is parts.Kind.DECLARED:
            named = declared_shares(loops)
            slices += [
                Slice(parts.named(part, place), shorten(printable(name), MAX_NAME), one, percent(one), note(one))
                for place, (name, one) in enumerate(named[:MAX_DECLARED])
            ]
            share -= sum(one for _, one in named[:MAX_DECLARED])
            if share < MIN_NAMED:
                continue
        value, text = percent(share), note(share)
        if part.key == "wait" and not waits_recorded(loops) and share < limits.HEALTHY:
            value = NOT_RECORDED
            text = NO_LOADER if watched else "no dataloader window either"
            text = f"{percent(share)} in the dataloader window" if share >= MIN_NAMED else text
        gpu = " (GPU)" if on_device and part.kind is parts.Kind.PHASE else ""
        label = WHOLE_STEPS if part.key == "between" and not has_phases else part.label
        slices.append(Slice(part, label + gpu, share, value, text))
    return slices
