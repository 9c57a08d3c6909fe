"""Samples of saving and writing: lines beside the phases whose calls no record times one by one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

import attrs
import numpy as np

from sm_profiler.diagnosis.judges.judge_context import JudgeContext
from sm_profiler.diagnosis.loop_ledger import BESIDE_THE_PHASES, is_timed
from sm_profiler.diagnosis.model import Location
from sm_profiler.metrics.sample_fold import Place

__all__ = ["BESIDE_THE_PHASES", "Seen", "seen_in_samples"]

MAX_LINES = 5


@attrs.frozen
class Seen:
    """Samples of an activity; shares of the loop, averaged over ranks.

    Attributes:
        share: all of them.
        count: number of samples.
        error: standard error of the share.
        lines: the lines, the most expensive first, each with its share of this time.
    """

    share: float = 0.0
    count: int = 0
    error: float = 0.0
    lines: tuple[Location, ...] = ()


def seen_in_samples(context: JudgeContext, activity: str, timed: Collection[tuple[str, int]] = ()) -> Seen:
    """Add up the samples of an activity.

    Args:
        context: what there is to judge.
        activity: one of the ledger.
        timed: file and line of calls that were timed one by one, which are left out.
    """
    seen, samples, seconds = context.seen, context.metrics.samples, defaultdict[Place, float](float)
    shares, count = [], 0
    for rank in context.ranks:
        own = [
            one
            for one in samples.stacks
            if one.process == rank.name and one.phase in BESIDE_THE_PHASES and one.places
            and seen.activity(one) == activity and not is_timed(one.places[-1], timed)
        ]  # fmt: skip
        shares.append(sum(one.seconds for one in own) / rank.loop if rank.loop > 0 else 0.0)
        count += sum(one.count for one in own)
        for one in own:
            seconds[one.places[-1]] += one.seconds
    total = sum(seconds.values())
    if total <= 0 or count <= 0:
        return Seen()
    share = min(float(np.mean(shares)), 1.0)
    longest = sorted(seconds, key=lambda place: (-seconds[place], place.file, place.line))[:MAX_LINES]
    lines = tuple(
        Location(one.file, one.line, one.function, seconds[one] / total, source=samples.source(one)) for one in longest
    )
    return Seen(share, count, share * ((1 - share) / count) ** 0.5, lines)
