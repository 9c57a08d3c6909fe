"""Names of processes as the page and the terminal show them: `rank 0` or `process 3895` in a job of one node."""

from __future__ import annotations

import re
from collections.abc import Callable

from sm_profiler.metrics.attempts import process_name
from sm_profiler.metrics.job_metrics import JobMetrics

_PLAIN = re.compile(r"[\w.-]{1,63}")


def readable_processes(metrics: JobMetrics) -> Callable[[str], str]:
    """Return a function that renames the processes in a text; files and report.json keep the names `algo-1-0`."""
    names = {}
    if len(metrics.nodes) == 1 and _PLAIN.fullmatch(metrics.nodes[0]):
        for one in metrics.metadata:
            name, rank, pid = process_name(one), one.get("rank"), one.get("pid")
            if name == f"{metrics.nodes[0]}-{pid if rank is None else rank}":
                names[name] = f"process {pid}" if rank is None else f"rank {rank}"
    if not names:
        return lambda text: text
    each = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w./-])(?:([Rr]ank|[Pp]rocess) )?({each})(?![\w/-])")

    def readable(found: re.Match[str]) -> str:
        kind, name = found[1] or "", names[found[2]]  # the text may have the word already
        return f"{name[0].upper()}{name[1:]}" if kind[:1].isupper() else name

    return lambda text: pattern.sub(readable, text)
