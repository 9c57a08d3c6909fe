"""Events on an EventBridge bus: the verdict as data, for rules of the user's own."""

from __future__ import annotations

import json
import re
from typing import Any

import attrs

from sm_profiler.errors import ConfigError, SourceError
from sm_profiler.exporters.aws import client_of, request
from sm_profiler.exporters.message import message_of
from sm_profiler.printable import printable
from sm_profiler.report import Report

SOURCE, DETAIL_TYPE = "sm-profiler", "Training Job Verdict"
_BUS = re.compile(r"[\w./:-]{1,256}", re.ASCII)


@attrs.define(eq=False)
class Bus:
    """Puts one event for a verdict, a healthy one too: rules choose by `detail.verdict.class`."""

    name: str
    client: Any
    once: bool = True

    def send(self, report: Report) -> str:
        """Put the event."""
        entry = {
            "Source": SOURCE, "DetailType": DETAIL_TYPE, "EventBusName": self.name,
            "Detail": json.dumps(message_of(report).detail, allow_nan=False),
        }  # fmt: skip
        answer = request(self.client.put_events, Entries=[entry])
        if answer.get("FailedEntryCount"):
            failed = answer["Entries"][0]
            raise SourceError(f"put_events: {failed.get('ErrorMessage') or failed.get('ErrorCode')}")
        return f"an event to {self.name}"


def open_exporter(place: str) -> Bus:
    """Return the exporter.

    Raises:
        ConfigError: it is not the name of a bus.
    """
    if not _BUS.fullmatch(place or "default"):
        raise ConfigError(f"--to eventbridge:{printable(place)[:100]}: expected the name or ARN of a bus")
    return Bus(place or "default", client_of("events"))
