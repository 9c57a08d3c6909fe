"""Destinations in AWS: messages to an SNS topic, events on an EventBridge bus, metrics in CloudWatch."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import attrs

from sm_profiler.errors import ConfigError, SourceError
from sm_profiler.exporters.destination import key_of, message_of, within
from sm_profiler.printable import printable
from sm_profiler.report import Report

try:
    from sm_profiler.storage.s3 import REQUEST_ERRORS, create_api_client, reason_of
except (ImportError, SourceError) as missing:
    raise SourceError("this destination needs boto3: pip install 'sm-profiler[aws]'") from missing

REQUEST_S = 180.0  # with the attempts that botocore makes

_ARN = re.compile(r"arn:[\w-]+:sns:(?P<region>[\w-]+):\d{12}:[\w-]+(\.fifo)?")
_SUBJECT = 99  # characters, all ASCII: SNS takes fewer than 100

SOURCE, DETAIL_TYPE = "sm-profiler", "Training Job Verdict"
_BUS = re.compile(r"[\w./:-]{1,256}", re.ASCII)

NAMESPACE = "sm-profiler"
DEFAULT_GROUP = "/sm-profiler"
_GROUP = re.compile(r"[\w./#-]{1,512}", re.ASCII)
_NAME = re.compile(r"[^\w./-]+", re.ASCII)
_MAX_RANKS = 256
_EVENTS = 500  # a request; its limits are 10,000 and a megabyte

UNITS = {
    "StepTime": "Milliseconds", "StepsPerSecond": "Count/Second", "LostTime": "Percent", "ProfilingCost": "Percent",
    "GPUUtilization": "Percent", "CPUUtilization": "Percent",
}  # fmt: skip


def request(place: str, call: Callable[..., Any], **parameters: Any) -> Any:
    """Return the answer to a request.

    Raises:
        SourceError: it failed; the message begins with the destination.
    """
    try:
        return within(REQUEST_S, partial(call, **parameters))
    except REQUEST_ERRORS as error:
        raise SourceError(f"{place}: {call.__name__}: {reason_of(error)}") from error


@attrs.define(eq=False)
class Topic:
    """Publishes the verdict as text, with class and confidence as attributes that subscriptions can filter by."""

    arn: str
    client: Any
    once: bool = True

    def send(self, report: Report) -> str:
        message, main = message_of(report), report.verdict.main
        subject = message.title.encode("ascii", "replace").decode()[:_SUBJECT]
        values = {"class": main.kind.value, "confidence": main.confidence}
        attributes = {name: {"DataType": "String", "StringValue": value} for name, value in values.items()}
        extra = {}
        if self.arn.endswith(".fifo"):
            extra = {"MessageGroupId": "sm-profiler", "MessageDeduplicationId": key_of(report, self.arn)}
        request(
            f"sns:{self.arn}", self.client.publish, TopicArn=self.arn, Subject=subject, Message=message.text,
            MessageAttributes=attributes, **extra,
        )  # fmt: skip
        return f"the verdict to {self.arn.rpartition(':')[2]}"


def open_topic(place: str) -> Topic:
    found = _ARN.fullmatch(place)
    if not found:
        raise ConfigError(f"--to sns:{printable(place)[:100]}: expected sns:arn:aws:sns:REGION:ACCOUNT:TOPIC")
    return Topic(place, create_api_client("sns", region=found["region"]))


@attrs.define(eq=False)
class Bus:
    """Puts an event for each verdict, healthy ones included: rules choose by `detail.verdict.class`."""

    name: str
    client: Any
    once: bool = True

    def send(self, report: Report) -> str:
        entry = {
            "Source": SOURCE, "DetailType": DETAIL_TYPE, "EventBusName": self.name,
            "Detail": json.dumps(message_of(report).detail, allow_nan=False),
        }  # fmt: skip
        answer = request(f"eventbridge:{self.name}", self.client.put_events, Entries=[entry])
        if answer.get("FailedEntryCount"):
            failed = answer["Entries"][0]
            raise SourceError(
                f"eventbridge:{self.name}: put_events: {failed.get('ErrorMessage') or failed.get('ErrorCode')}"
            )
        return f"an event to {self.name}"


def open_bus(place: str) -> Bus:
    if not _BUS.fullmatch(place or "default"):
        raise ConfigError(f"--to eventbridge:{printable(place)[:100]}: expected the name or ARN of a bus")
    return Bus(place or "default", create_api_client("events"))


@attrs.define(eq=False)
class Logs:
    """Writes a job's metrics to a log group, in a stream of the job's name."""

    group: str
    client: Any
    clock: Callable[[], float] = time.time
    once: bool = False

    def send(self, report: Report) -> str:
        stream = _NAME.sub("-", report.metrics.name)[:400] or "job"
        self._create(self.client.create_log_group, logGroupName=self.group)
        self._create(self.client.create_log_stream, logGroupName=self.group, logStreamName=stream)
        now_ms = int(self.clock() * 1000)
        events = [{"timestamp": now_ms, "message": json.dumps(event)} for event in documents(report, now_ms)]
        for first in range(0, len(events), _EVENTS):
            request(
                f"cloudwatch:{self.group}", self.client.put_log_events, logGroupName=self.group, logStreamName=stream,
                logEvents=events[first : first + _EVENTS],
            )  # fmt: skip
        return f"{len(events)} events with metrics to {self.group}"

    def _create(self, create: Callable[..., Any], **parameters: Any) -> None:
        try:
            request(f"cloudwatch:{self.group}", create, **parameters)
        except SourceError as error:
            if not isinstance(error.__cause__, self.client.exceptions.ResourceAlreadyExistsException):
                raise


def documents(report: Report, now_ms: int) -> Iterator[dict[str, Any]]:
    """Yield an event for the job and for each rank.

    Dimensions are the job and, for a rank, its name: a metric of CloudWatch costs money for each combination.
    """
    metrics, main = report.metrics, report.verdict.main
    job = printable(metrics.name)[:250] or "job"
    steps = [rank.iterations.length for rank in metrics.ranks[:_MAX_RANKS]]
    lost = 100 * main.share_of_time if main.kind.costs_time else 0.0
    values = {
        "StepsPerSecond": metrics.steps_per_second, "LostTime": lost,
        "ProfilingCost": None if metrics.overhead is None else 100 * metrics.overhead,
        "GPUUtilization": metrics.mean_of("gpu"), "CPUUtilization": metrics.mean_of("cpu"),
    }  # fmt: skip
    texts = {"Verdict": main.kind.value, "Confidence": main.confidence, "Headline": main.headline}
    yield _document(now_ms, {"Job": job}, values, texts)
    for rank, lengths in zip(metrics.ranks, steps, strict=False):
        if len(lengths):
            mean = 1e3 * float(lengths.mean())
            yield _document(now_ms, {"Job": job, "Rank": printable(rank.name)[:250]}, {"StepTime": mean}, {})


def _document(
    now_ms: int, dimensions: dict[str, str], values: dict[str, float | None], texts: dict[str, str]
) -> dict[str, Any]:
    known = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
    directive = {
        "Namespace": NAMESPACE,
        "Dimensions": [list(dimensions)],
        "Metrics": [{"Name": name, "Unit": UNITS[name]} for name in known],
    }
    return {"_aws": {"Timestamp": now_ms, "CloudWatchMetrics": [directive]}, **dimensions, **texts, **known}


def open_log_group(place: str) -> Logs:
    group = place or DEFAULT_GROUP
    if not _GROUP.fullmatch(group):
        raise ConfigError(f"--to cloudwatch:{printable(place)[:100]}: expected the name of a log group")
    return Logs(group, create_api_client("logs"))
