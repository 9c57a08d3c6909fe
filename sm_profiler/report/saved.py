"""The verdict of a report that lies beside a profile, for lists of jobs."""

from __future__ import annotations

import json

import attrs

from sm_profiler.diagnosis.classes import Class


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


def verdict_of(report: bytes) -> SavedVerdict | None:
    """Return the verdict in a report.json; None if it cannot be read."""
    try:
        found = json.loads(report)["verdict"]
        return SavedVerdict(Class[found["class"]], str(found["headline"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
