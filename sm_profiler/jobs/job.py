"""A job of a source, before its profile is opened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import attrs

State = Literal["running", "ended", ""]


def _no_report() -> bytes | None:
    return None


@attrs.frozen
class Job:
    """A job of a source.

    Attributes:
        name: its name, as a stranger may have chosen it.
        where: its location, as `source.open_source` takes it.
        changed: when its files changed last, seconds since the epoch; 0 if that is not known.
        state: `running`, `ended`, or "" if that is not known.
        identity: a text that changes with its report.
        read_report: returns the bytes of its report.json, None without one; raises SourceError.
    """

    name: str
    where: str
    changed: float = 0.0
    state: State = ""
    identity: str = attrs.field(default="", eq=False)
    read_report: Callable[[], bytes | None] = attrs.field(default=_no_report, eq=False, repr=False)
