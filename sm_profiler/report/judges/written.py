"""Lines that write text to files, as the sampled stacks show them: methods of open files cannot be timed one by one."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection

import attrs
import numpy as np

from sm_profiler.report.judges.judge_context import JudgeContext
from sm_profiler.report.model import Location
from sm_profiler.report.sample_fold import Place, Sampled

WRITES = re.compile(r"\.(write|writelines|writerow|writerows|flush)\(|\bjson\.dumps?\(|\bprint\(")
LOOPS = re.compile(r"\.(fit|evaluate|predict)\(")  # whose results a line prints: it runs a whole loop
# What follows the last batch of an evaluation counts as part of it in the samples: results that are written, too.
BESIDE_THE_PHASES = ("outside", "between", "evaluation")
MAX_LINES = 5


@attrs.frozen
class Written:
    """Samples in lines that write text; shares of the loop, averaged over ranks.

    Attributes:
        share: all of them.
        in_long: those in long steps.
        count: number of samples.
        error: standard error of the share.
        lines: the lines, the most expensive first, each with its share of this time.
    """

    share: float = 0.0
    in_long: float = 0.0
    count: int = 0
    error: float = 0.0
    lines: tuple[Location, ...] = ()


def written_lines(context: JudgeContext, known: Collection[tuple[str, int]] = ()) -> Written:
    """Add up the samples in lines that write text.

    Args:
        context: what there is to judge.
        known: file and line of calls that were timed one by one, which are left out.
    """
    samples, seconds = context.metrics.samples, defaultdict[Place, float](float)
    shares, long, count = [], [], 0
    for rank in context.ranks:
        own = [
            one
            for one in samples.stacks
            if one.process == rank.name and one.places and _writes(one, samples.source(one.places[-1]), known)
        ]
        shares.append(sum(one.seconds for one in own) / rank.loop if rank.loop > 0 else 0.0)
        long.append(sum(one.seconds for one in own if one.long) / rank.loop if rank.loop > 0 else 0.0)
        count += sum(one.count for one in own)
        for one in own:
            seconds[one.places[-1]] += one.seconds
    total = sum(seconds.values())
    if total <= 0 or count <= 0:
        return Written()
    share = min(float(np.mean(shares)), 1.0)
    longest = sorted(seconds, key=lambda place: (-seconds[place], place.file, place.line))[:MAX_LINES]
    lines = tuple(
        Location(one.file, one.line, one.function, seconds[one] / total, source=samples.source(one)) for one in longest
    )
    return Written(share, min(float(np.mean(long)), share), count, share * ((1 - share) / count) ** 0.5, lines)


def _writes(one: Sampled, source: str, known: Collection[tuple[str, int]]) -> bool:
    place = one.places[-1]
    elsewhere = one.phase not in BESIDE_THE_PHASES or (place.file, place.line) in known
    return not elsewhere and WRITES.search(source) is not None and LOOPS.search(source) is None
