"""Destinations of findings: `KIND` or `KIND:PLACE`, such as `eventbridge` or `webhook:https://…`."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol

from sm_profiler.errors import ConfigError
from sm_profiler.printable import printable
from sm_profiler.report import Report

# kind → module with a function `open_exporter(place)`, and what the place is
KINDS = {
    "mlflow": ("mlflow_runs", "URI of a tracking server; default: MLFLOW_TRACKING_URI"),
    "webhook": ("webhook", "URL of a Slack-compatible webhook"),
    "sns": ("sns", "ARN of a topic"),
    "eventbridge": ("eventbridge", "name of a bus; default: default"),
    "cloudwatch": ("cloudwatch", "log group of the metrics; default: /sm-profiler"),
}


class Exporter(Protocol):
    """Sends a report to one place."""

    once: bool
    """The same finding is sent once only."""

    def send(self, report: Report) -> str:
        """Send what the place takes of a report; return what was sent, for a line of text.

        Raises:
            SourceError: it cannot be sent.
        """


def open_destination(text: str) -> Exporter:
    """Return the exporter of a destination.

    Raises:
        ConfigError: there is none of this kind, or its place is wrong.
        SourceError: a package that it needs is not installed.
    """
    kind, _, place = text.partition(":")
    if kind not in KINDS:
        raise ConfigError(f"--to {printable(text)[:100]}: expected {', '.join(KINDS)}, each with :PLACE")
    module = import_module(f"sm_profiler.exporters.{KINDS[kind][0]}")
    exporter: Exporter = module.open_exporter(place)
    return exporter
