"""The verdict of a report that lies beside a profile, for lists of jobs."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import attrs

from sm_profiler.errors import SourceError
from sm_profiler.report.classes import Class
from sm_profiler.storage import LocalStorage

PLACES = ("report.json", "profiler-report/report.json", "rule-output/ProfilerReport/profiler-output/report.json")
MAX_BYTES = 16 << 20


@attrs.frozen
class SavedVerdict:
    """Class and headline of a verdict."""

    kind: Class
    headline: str

    @property
    def label(self) -> str:
        """Name of the class on the page."""
        return self.kind.label

    @property
    def is_open(self) -> bool:
        """True if it names neither a problem nor health."""
        return self.kind is Class.INCONCLUSIVE


def saved_verdict(folder: Path) -> SavedVerdict | None:
    """Return the verdict of the report in a job's folder; None without one, or if it cannot be read."""
    for place in PLACES:
        try:
            changed = (folder / place).stat().st_mtime_ns
        except OSError:
            continue
        if found := _read(folder, place, changed):
            return found
    return None


@lru_cache(1024)
def _read(folder: Path, place: str, _changed: int) -> SavedVerdict | None:
    try:
        return verdict_of(LocalStorage(folder).read(place, end=MAX_BYTES))
    except SourceError:
        return None


def verdict_of(report: bytes) -> SavedVerdict | None:
    """Return the verdict in a report.json; None if it cannot be read."""
    try:
        found = json.loads(report)["verdict"]
        return SavedVerdict(Class[found["class"]], str(found["headline"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
