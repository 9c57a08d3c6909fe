"""A job that was found, before it is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from sm_profiler.fleet.model import FleetJob


@attrs.frozen(eq=False)
class Loaded:
    """Files of a job: its description, its report.json, and where its profile is.

    Attributes:
        description: response of DescribeTrainingJob; empty if there is none.
        report: bytes of its report.json; None if there is none.
        place: a row with its name and its locations.
        profile: location to judge it from, as `source.open_source` takes it; "" if there is none.
        changed: last change of a file of the profile, seconds since the epoch.
        reported: the same of its report.json.
        identity: text that changes if one of these files does; "" if the candidate has it already.
    """

    description: Mapping[str, Any]
    report: bytes | None
    place: FleetJob
    profile: str = ""
    changed: float = 0.0
    reported: float = 0.0
    identity: str = ""


@attrs.frozen(eq=False)
class Candidate:
    """A job that may be in the index.

    Attributes:
        job: its location, the same in each run.
        name: its name, for an error.
        load: reads its small files; raises SourceError.
        identity: text that changes if one of its files does; "" if only `load` returns it.
        modified: last change of its description, for a job of an account.
        started: when it may have started at the earliest, or its last change; 0 if unknown.
        ended: it runs no more; False if unknown.
    """

    job: str
    name: str
    load: Callable[[], Loaded]
    identity: str = ""
    modified: str = ""
    started: float = 0.0
    ended: bool = False

    @property
    def place(self) -> str:
        """Its folder or URI, or its ARN."""
        root, *inner = self.job.split("\n")
        return "/".join([root.rstrip("/"), *filter(None, inner[:1])])
