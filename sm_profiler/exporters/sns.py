"""Messages to an SNS topic: by e-mail, SMS, chat, or a queue, as its subscribers like."""

from __future__ import annotations

import json
import re
from typing import Any

import attrs

from sm_profiler.errors import ConfigError
from sm_profiler.exporters.aws import client_of, request
from sm_profiler.exporters.message import message_of
from sm_profiler.printable import printable
from sm_profiler.report import Report

_ARN = re.compile(r"arn:[\w-]+:sns:(?P<region>[\w-]+):\d{12}:[\w-]+(\.fifo)?")
_SUBJECT = 99  # characters, all ASCII: SNS takes fewer than 100


@attrs.define(eq=False)
class Topic:
    """Publishes the verdict as text, with class and confidence as attributes that subscriptions can filter by."""

    arn: str
    client: Any
    once: bool = True

    def send(self, report: Report) -> str:
        """Publish the message."""
        message, main = message_of(report), report.verdict.main
        subject = message.title.encode("ascii", "replace").decode()[:_SUBJECT]
        values = {"class": main.kind.value, "confidence": main.confidence}
        attributes = {name: {"DataType": "String", "StringValue": value} for name, value in values.items()}
        extra = {}
        if self.arn.endswith(".fifo"):
            extra = {"MessageGroupId": "sm-profiler", "MessageDeduplicationId": _id_of(message.detail)}
        request(
            self.client.publish, TopicArn=self.arn, Subject=subject, Message=message.text,
            MessageAttributes=attributes, **extra,
        )  # fmt: skip
        return f"the verdict to {self.arn.rpartition(':')[2]}"


def _id_of(detail: dict[str, Any]) -> str:
    import hashlib  # noqa: PLC0415 - for ordered topics only

    same = {"job": detail["job"], "source": detail["source"], "class": detail["verdict"]["class"]}
    return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()


def open_exporter(place: str) -> Topic:
    """Return the exporter.

    Raises:
        ConfigError: it is not the ARN of a topic.
    """
    found = _ARN.fullmatch(place)
    if not found:
        raise ConfigError(f"--to sns:{printable(place)[:100]}: expected sns:arn:aws:sns:REGION:ACCOUNT:TOPIC")
    return Topic(place, client_of("sns", found["region"]))
