"""Metrics for CloudWatch: log events in the embedded metric format, from which it makes metrics by itself."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import attrs

from sm_profiler.errors import ConfigError
from sm_profiler.exporters.aws import client_of, request
from sm_profiler.printable import printable
from sm_profiler.report import Report

NAMESPACE = "sm-profiler"
DEFAULT_GROUP = "/sm-profiler"
_GROUP = re.compile(r"[\w./#-]{1,512}", re.ASCII)
_NAME = re.compile(r"[^\w./-]+", re.ASCII)
_MAX_RANKS = 256
_EVENTS = 500  # a request; its limits are 10,000 and a megabyte


@attrs.frozen
class Metric:
    """A metric: its name in CloudWatch and its unit there."""

    name: str
    unit: str


STEP_TIME, STEPS = Metric("StepTime", "Milliseconds"), Metric("StepsPerSecond", "Count/Second")
LOST, COST = Metric("LostTime", "Percent"), Metric("ProfilingCost", "Percent")
GPU, CPU = Metric("GPUUtilization", "Percent"), Metric("CPUUtilization", "Percent")


@attrs.define(eq=False)
class Logs:
    """Writes a job's metrics to a log group, in a stream of the job's name."""

    group: str
    client: Any
    clock: Callable[[], float] = time.time
    once: bool = False

    def send(self, report: Report) -> str:
        """Write the events."""
        stream = _NAME.sub("-", report.metrics.name)[:400] or "job"
        self._create(self.client.create_log_group, logGroupName=self.group)
        self._create(self.client.create_log_stream, logGroupName=self.group, logStreamName=stream)
        now_ms = int(self.clock() * 1000)
        events = [{"timestamp": now_ms, "message": json.dumps(one)} for one in documents(report, now_ms)]
        for first in range(0, len(events), _EVENTS):
            request(
                self.client.put_log_events, logGroupName=self.group, logStreamName=stream,
                logEvents=events[first : first + _EVENTS],
            )  # fmt: skip
        return f"{len(events)} events with metrics to {self.group}"

    def _create(self, create: Callable[..., Any], **parameters: Any) -> None:
        try:
            create(**parameters)
        except self.client.exceptions.ResourceAlreadyExistsException:
            return
        except Exception:  # noqa: BLE001 - reported in one line
            request(create, **parameters)


def documents(report: Report, now_ms: int) -> Iterator[dict[str, Any]]:
    """Yield the events: one for the job, one for each rank.

    Dimensions are the job and, for a rank, its name: a metric of CloudWatch costs money for each combination.
    """
    metrics, main = report.metrics, report.verdict.main
    job = printable(metrics.name)[:250] or "job"
    steps = [rank.iterations.length for rank in metrics.ranks[:_MAX_RANKS]]
    lost = 0.0 if main.kind.is_healthy else 100 * main.share_of_time
    yield _document(
        now_ms, {"Job": job},
        {
            STEPS: metrics.steps_per_second, LOST: lost, COST: None if metrics.overhead is None else 100 * metrics.overhead,
            GPU: metrics.mean_of("gpu"), CPU: metrics.mean_of("cpu"),
        },
        {"Verdict": main.kind.value, "Confidence": main.confidence, "Headline": main.headline},
    )  # fmt: skip
    for rank, lengths in zip(metrics.ranks, steps, strict=False):
        if len(lengths):
            mean = 1e3 * float(lengths.mean())
            yield _document(now_ms, {"Job": job, "Rank": printable(rank.name)[:250]}, {STEP_TIME: mean}, {})


def _document(
    now_ms: int, dimensions: dict[str, str], values: dict[Metric, float | None], texts: dict[str, str]
) -> dict[str, Any]:
    known = {metric: value for metric, value in values.items() if value is not None and math.isfinite(value)}
    directive = {
        "Namespace": NAMESPACE,
        "Dimensions": [list(dimensions)],
        "Metrics": [{"Name": metric.name, "Unit": metric.unit} for metric in known],
    }
    return {
        "_aws": {"Timestamp": now_ms, "CloudWatchMetrics": [directive]},
        **dimensions, **texts, **{metric.name: value for metric, value in known.items()},
    }  # fmt: skip


def open_exporter(place: str) -> Logs:
    """Return the exporter.

    Raises:
        ConfigError: it is not the name of a log group.
    """
    group = place or DEFAULT_GROUP
    if not _GROUP.fullmatch(group):
        raise ConfigError(f"--to cloudwatch:{printable(place)[:100]}: expected the name of a log group")
    return Logs(group, client_of("logs"))
