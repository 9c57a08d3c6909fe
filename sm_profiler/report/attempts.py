"""Jobs that were interrupted and taken up again: which processes follow each other, and when nobody trained.

An attempt is told apart by its process and start time, as the hook's metadata says; in a container that is started again
the pid may well be the same.  A process without a rank is named by its pid: those of a node that never ran at the
same time are attempts of one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import attrs
import numpy as np

from sm_profiler.formats.columns import Mask
from sm_profiler.report.step_fold import TRAIN, WAIT, StepFacts, StepRows


@attrs.frozen
class Attempts:
    """The attempts of one process.

    Attributes:
        count: 1 for a job that was never interrupted.
        breaks: rows with which the second, third … attempt begin.
        down_s: seconds from the last step of an attempt to the first wait or step of the next, summed.
    """

    count: int = 1
    breaks: tuple[int, ...] = ()
    down_s: float = 0.0


def find_attempts(name: str, rows: StepRows, metadata: Sequence[Mapping[str, Any]], pids: int) -> Attempts:
    """The attempts of one process; `pids`: how many processes had its steps, for profiles without metadata."""
    starts = sorted({one["start_us"] for one in metadata if _name(one) == name and one.get("start_us") is not None})
    breaks: list[int] = []
    for start in starts[1:]:
        # metadata may count from the first event of the new process; its first wait may be the same moment
        at = int(np.searchsorted(rows.start, start - 1))
        if 0 < at < len(rows) and at not in breaks and rows.number[at] <= rows.number[at - 1]:
            breaks.append(at)
    down = sum(max(rows.start[at] - rows.parts[at, WAIT] - rows.end[at - 1], 0.0) for at in breaks)
    return Attempts(max(len(breaks) + 1, pids), tuple(breaks), float(down) / 1e6)


def join_successors(found: StepFacts, metadata: Sequence[Mapping[str, Any]]) -> tuple[StepFacts, list[dict[str, Any]]]:
    """Processes without a rank that followed each other on a node become one, under the name of the first."""
    named = {_name(one): str(one.get("node")) for one in metadata if one.get("rank") is None}
    renamed: dict[str, str] = {}
    for node in set(named.values()):
        names = sorted((name for name in found.steps if named.get(name) == node), key=lambda name: found.loop[name])
        if names and all(found.loop[before][1] <= found.loop[after][0] for before, after in pairwise(names)):
            renamed |= dict.fromkeys(names[1:], names[0])
    records = [dict(one) | ({"name": renamed[_name(one)]} if _name(one) in renamed else {}) for one in metadata]
    if not renamed:
        return found, records
    steps, loop, overhead = dict(found.steps), dict(found.loop), dict(found.overhead_us)
    for name, first in renamed.items():
        steps[first] = _joined(steps[first], steps.pop(name))
        loop[first] = (loop[first][0], loop.pop(name)[1])
        if name in overhead:
            overhead[first] = overhead.get(first, 0.0) + overhead.pop(name)
    return attrs.evolve(found, steps=steps, loop=loop, overhead_us=overhead), records


def evaluation_seconds(rows: StepRows, breaks: Sequence[int] = ()) -> float:
    """Time from the first fetch to the last step of each stretch of evaluation; a new attempt begins a new stretch."""
    evaluation = rows.mode != TRAIN
    if not evaluation.any():
        return 0.0
    before = np.concatenate([[False], evaluation[:-1]])
    after = np.concatenate([evaluation[1:], [False]])
    for at in breaks:
        before[at] = after[at - 1] = False
    first, last = np.flatnonzero(evaluation & ~before), np.flatnonzero(evaluation & ~after)
    begin = rows.start[first] - rows.parts[first, WAIT]
    return float((rows.end[last] - begin).sum() / 1e6)


def follows(rows: StepRows, breaks: Sequence[int]) -> Mask:
    """Which rows, the first left out, are in the same attempt as the row before."""
    same = np.ones(max(len(rows) - 1, 0), np.bool_)
    same[np.asarray(breaks, np.int64) - 1] = False
    return same


def _joined(first: StepRows, second: StepRows) -> StepRows:
    return StepRows(
        *(np.concatenate([getattr(part, field.name) for part in (first, second)]) for field in attrs.fields(StepRows))
    )


def _name(one: Mapping[str, Any]) -> str:
    if isinstance(one.get("name"), str):
        return str(one["name"])
    number = one.get("pid") if one.get("rank") is None else one.get("rank")
    return f"{one.get('node')}-{number}"
