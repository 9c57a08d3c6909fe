"""Opening and closing the files that a save writes: to truncate a large file takes as long as to write it.

No timed call covers these lines, as the script opens the file itself: samples of the function that saves show them.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import attrs
import numpy as np

from sm_profiler.report import policy
from sm_profiler.report.judges.judge_context import JudgeContext
from sm_profiler.report.judges.occurrences import Spent
from sm_profiler.report.judges.written import BESIDE_THE_PHASES
from sm_profiler.report.model import Evidence
from sm_profiler.report.sample_fold import Place

OPENS = re.compile(r"""\bopen\(.*["'](?:[wxa]b?\+?|b[wxa]|r\+b?|rb\+)["']""")


def with_opening(context: JudgeContext, spent: Spent) -> tuple[Spent, tuple[Evidence, ...]]:
    """Add the lines that open files for writing, in the functions that save, to the time spent saving."""
    savers = {(str(one.args.get("file")), one.args.get("function")) for one in spent.records}
    timed = {(str(one.args.get("file")), one.args.get("line")) for one in spent.records}  # what they take is known
    samples, shares, long, count = context.metrics.samples, [], [], 0
    for rank in context.ranks:
        own = [
            one
            for one in samples.stacks
            if one.process == rank.name
            and one.places
            and one.phase in BESIDE_THE_PHASES
            and _is_one_of(one.places[-1], one.places[-1].function, savers)
            and not _is_one_of(one.places[-1], one.places[-1].line, timed)
            and OPENS.search(samples.source(one.places[-1]))
        ]
        shares.append(sum(one.seconds for one in own) / rank.loop if rank.loop > 0 else 0.0)
        long.append(sum(one.seconds for one in own if one.long) / rank.loop if rank.loop > 0 else 0.0)
        count += sum(one.count for one in own)
    if count < policy.WRITTEN_SAMPLES:
        return spent, ()
    share = min(float(np.mean(shares)), max(1 - spent.share, 0.0))
    in_long = min(float(np.mean(long)), share)
    evidence = (Evidence("opening and closing the files, from samples", round(share, 4), unit="share"),)
    return attrs.evolve(spent, share=spent.share + share, in_long=spent.in_long + in_long), evidence


def _is_one_of(place: Place, part: object, known: Collection[tuple[str, Any]]) -> bool:
    """Return whether a place's function or line is known; samples may name files relative to the folder of the job."""
    return any(part == other and (place.file == file or file.endswith(f"/{place.file}")) for file, other in known)
