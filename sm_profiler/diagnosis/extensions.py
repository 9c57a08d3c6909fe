"""Causes and judges of other packages (`sm_profiler.plugins`), kept from harming a report."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import attrs

from sm_profiler import plugins
from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.ledger import Ledger
from sm_profiler.diagnosis.model import Finding
from sm_profiler.diagnosis.table.causes import Cause, Repair
from sm_profiler.diagnosis.table.whatif import Steps
from sm_profiler.printable import logger_for, one_line

log = logger_for("sm_profiler")


class ForeignFinding(Finding, frozen=True):
    """A finding of another package: its repair saves the share of the time that it names, for lack of a model."""


def more_causes() -> list[Cause]:
    """Return the rows that other packages add to the table of causes."""
    found = []
    for name, cause in plugins.load(plugins.CAUSES).items():
        if not isinstance(cause, Cause):
            continue
        if cause.kind not in Class.__members__:
            log.warning("sm-profiler: the extension %s is left out: %s is no class of verdict", name, cause.kind)
            continue
        found.append(attrs.evolve(cause, repair=_guarded(name, cause.repair)))
    return found


def more_judges() -> list[Callable[[Any], Finding | None]]:
    """Return the judges that other packages add; one that raises is listed among a report's broken parts."""
    found = plugins.load(plugins.CAUSES).items()
    return [_checked(name, judge) for name, judge in found if callable(judge) and not isinstance(judge, Cause)]


def _guarded(name: str, repair: Callable[[Steps, Ledger], Repair | None]) -> Callable[[Steps, Ledger], Repair | None]:
    failed: list[str] = []

    def guarded(before: Steps, ledger: Ledger) -> Repair | None:
        if failed:
            return None
        try:
            return repair(before, ledger)
        except Exception as error:
            failed.append(name)  # asked again after each repair, reported once
            log.warning("sm-profiler: the extension %s failed: %s: %s", name, type(error).__name__, one_line(error))
            return None

    return guarded


def _checked(name: str, judge: Callable[[Any], Any]) -> Callable[[Any], Finding | None]:
    @wraps(judge)
    def checked(context: Any) -> Finding | None:
        finding = judge(context)
        if finding is not None and not isinstance(finding, Finding):
            raise TypeError(f"it returned {type(finding).__name__}, not a Finding")
        return (
            None
            if finding is None
            else ForeignFinding(**{key: getattr(finding, key) for key in Finding.__struct_fields__})
        )

    checked.__name__ = name
    return checked
