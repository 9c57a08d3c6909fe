"""Data that is missing: damaged and cut-off files of a job that is over, events that a disk did not take.

Findings that rest on it are less certain.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
from msgspec.structs import replace

from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.model import Finding, Verdict
from sm_profiler.formats.layout import PYTHON_TIMELINE, SYSTEM, TRACE_FOLDER
from sm_profiler.formats.outcome import REFUSED
from sm_profiler.formats.process_end import bounded_line
from sm_profiler.formatting import plural
from sm_profiler.metrics.attempts import process_name
from sm_profiler.settings import LOCAL_MAX

SHOWN = 2  # files that the sentence names
# A gap in the recording looks like each of these: time between steps, before them or without them.
FROM_GAPS = frozenset({
    Class.INITIALIZATION_BOUND, Class.SYNC_BOUND, Class.IDLE, Class.STEP_OUTLIERS, Class.PERIODIC_STALL, Class.FAIL_SLOW,
    Class.EVALUATION_BOUND, Class.UNEQUAL_STEPS, Class.HANG,
})  # fmt: skip
_BROKEN = ("damaged", "cut off", "empty")
_WHOLE = ("no records", "named by a time")  # reasons for which a file is left out although it is intact
_LOWER = {"high": "medium", "medium": "low", "low": "low"}


@attrs.frozen
class Damage:
    """Files that were not read completely.

    Attributes:
        paths: the files.
        refused: number of those of which nothing could be read.
        total: number of all files.
        empty: number of those that have no bytes.
    """

    paths: tuple[str, ...]
    refused: int
    total: int
    empty: int = 0

    @property
    def sentence(self) -> str:
        """Names of the files and what is therefore missing, as text; "" without any."""
        if not self.paths:
            return ""
        names = [path.rpartition("/")[2] for path in self.paths[:SHOWN]]
        more = f" and {len(self.paths) - SHOWN} more" if len(self.paths) > SHOWN else ""
        nothing = f", {self.refused} of them without any content that can be read" if self.refused else ""
        kinds = {_content(path): None for path in self.paths}
        return (
            f"{len(self.paths)} of {plural(self.total, 'file')} {'is' if len(self.paths) == 1 else 'are'} damaged or cut off"
            f"{nothing} ({', '.join(names)}{more}): {' and '.join(kinds)} are missing for a part of the job, and a gap in them "
            f"can look like lost time.{self._emptied}"
        )

    @property
    def _emptied(self) -> str:
        if not self.empty:
            return ""
        return (
            f" {self.empty:,} of them {'is' if self.empty == 1 else 'are'} empty: the profile reached {LOCAL_MAX.name}, at "
            "which the oldest files are emptied, or their writing failed."
        )

    @property
    def doubt(self) -> str:
        """The same as the reason of a confidence."""
        return f"{plural(len(self.paths), 'file')} could not be read completely"


def damage_of(files: Iterable[Any], total: int) -> Damage:
    """Return the damage among the outcomes of files.

    Args:
        files: outcomes of files, those without faults included or not.
        total: number of all files.
    """
    broken = [file for file in files if _is_broken(file)]
    refused = sum(file.status == REFUSED for file in broken)
    empty = sum(file.reason.startswith("empty") for file in broken)
    return Damage(tuple(sorted(file.path for file in broken)), refused, total, empty)


def unwritten(metadata: Iterable[Mapping[str, Any]]) -> tuple[int, str]:
    """Return how many events the processes could not write, and the error of the disk; "" if it was only slow."""
    latest: dict[Any, Mapping[str, Any]] = {}
    for one in metadata:
        key = process_name(one), one.get("pid"), one.get("host"), one.get("start_us")
        if _count(one) >= _count(latest.get(key, {})):
            latest[key] = one
    errors = (str(one.get("disk_error") or "") for one in latest.values() if _count(one))
    return sum(map(_count, latest.values())), next(filter(None, errors), "")


def disk_failure(metadata: Iterable[Mapping[str, Any]]) -> str:
    """Return that the disk was full, or failed, if that lost events; else ""."""
    count, error = unwritten(metadata)
    return (
        ""
        if not (count and error)
        else "the disk was full"
        if os.strerror(errno.ENOSPC) in error
        else "the disk failed"
    )


def unwritten_sentence(metadata: Sequence[Mapping[str, Any]]) -> str:
    """Return a sentence about events that a failing disk did not take; "" without any."""
    count, error = unwritten(metadata)
    failure = disk_failure(metadata)
    lost = f"{plural(count, 'event')} of the loop could not be written, and {'is' if count == 1 else 'are'} lost"
    return failure and f"{failure.capitalize()}: {lost} ({bounded_line(error)})."


def _count(one: Mapping[str, Any]) -> int:
    count = one.get("dropped")
    return count if type(count) is int and count > 0 else 0


def doubted(verdict: Verdict, doubt: str) -> Verdict:
    """Return a verdict whose findings are less certain, since data is missing."""
    return attrs.evolve(
        verdict, main=_doubted(verdict.main, doubt), also=tuple(_doubted(one, doubt) for one in verdict.also)
    )


def _doubted(finding: Finding, doubt: str) -> Finding:
    level = "low" if finding.kind in FROM_GAPS else _LOWER[finding.confidence]
    return finding if level == finding.confidence else replace(finding, confidence=level, doubt=doubt)


def _is_broken(file: Any) -> bool:
    if file.status == REFUSED:
        return not any(text in file.reason for text in _WHOLE)
    # other tools' timelines are never closed
    cut = file.path.endswith(f"{PYTHON_TIMELINE}.json") and "array not closed" in file.reason
    return cut or any(text in file.reason for text in _BROKEN)


def _content(path: str) -> str:
    if path.startswith(f"{SYSTEM}/"):
        return "system metrics"
    return "steps" if path.startswith(f"{TRACE_FOLDER}/") else "events of a detailed window"
