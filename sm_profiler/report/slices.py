"""Where the loop's time goes, as the page's bar and the terminal's show it: same slices, same rounding."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from sm_profiler.report import labels, policy
from sm_profiler.report.job_metrics import Rank
from sm_profiler.report.judges.judge_context import duration, percent, waits_recorded

LEGEND = 0.0005  # smaller shares are drawn, not named
NOT_RECORDED = "not recorded"


@attrs.frozen
class Slice:
    """One slice of the loop, averaged over ranks.

    Attributes:
        key: its name in the facts, which is also its colour's.
        label: its name for people.
        share: of the loop, 0 to 1.
        value: the share in words, or that it was not recorded.
        note: time a step, or what else is to be said.
    """

    key: str
    label: str
    share: float
    value: str
    note: str

    @property
    def is_named(self) -> bool:
        """Large enough for the legend, or missing."""
        return self.share >= LEGEND or self.value == NOT_RECORDED


def loop_slices(ranks: Sequence[Rank]) -> list[Slice]:
    """The slices in the order of a step; empty without a loop."""
    loops = [rank for rank in ranks if rank.loop > 0]
    if not loops:
        return []
    steps = sum(int(rank.train.sum()) for rank in loops) or 1
    whole = sum(rank.loop for rank in loops)
    made, on_device = [], all(rank.on_device for rank in loops)
    for key, (label, _) in labels.SLICES.items():
        share = sum(rank.share(key) for rank in loops) / len(loops)
        value, note = percent(share), f"{duration(share * whole / steps)} a step"
        if key == "wait" and not waits_recorded(loops) and share < policy.INPUT_WAIT.value:
            value = NOT_RECORDED
            note = (
                f"{percent(share)} seen in the dataloader window"
                if share >= LEGEND
                else "nor told by a dataloader window"
            )
        of_gpu = " (GPU)" if on_device and key in ("forward", "backward", "optimizer") else ""
        made.append(Slice(key, label + of_gpu, share, value, note))
    return made
