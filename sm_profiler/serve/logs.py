"""The last lines of a training job's log in CloudWatch, or on the local endpoint, which has the same API."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import attrs

from sm_profiler.formatting import clean, natural_key, shorten
from sm_profiler.jobs.finding import training_job_of

GROUP = "/aws/sagemaker/TrainingJobs"
MAX_STREAMS = 8  # of the first nodes; each has a stream
MAX_LINES, MAX_LENGTH = 64, 400  # of all streams together; characters of a line
PAUSE_S, REFUSED_S = 10.0, 300.0  # between two requests, and after a refusal
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)?")


@attrs.frozen
class Stream:
    """The end of a stream: the node's name and its last lines."""

    name: str
    lines: tuple[str, ...]


def new_client(region: str | None) -> Any:
    from sm_profiler.storage.s3 import create_api_client  # boto3 takes a third of a second to load

    return create_api_client("logs", region=region)


@attrs.define(eq=False)
class LogTail:
    """Reads the end of a job's log now and then. Without permission to read it, there is none.

    Attributes:
        job: name of the training job; "" for anything else.
        region: its region; default: boto3's.
        clock: for tests.
        client_of: makes the client.
    """

    job: str
    region: str | None = None
    clock: Callable[[], float] = time.monotonic
    client_of: Callable[[str | None], Any] = new_client
    streams: tuple[Stream, ...] = ()
    _client: Any = None
    _next: float = 0.0

    @classmethod
    def of(cls, where: str, clock: Callable[[], float] = time.monotonic) -> LogTail:
        """Return the log of a job that is named by itself or by the S3 prefix of its profile."""
        name, region = training_job_of(where)
        return cls(name, region or None, clock)

    def read(self, *, last: bool = False) -> bool:
        """Read the log if it is time (`last`: in any case), and return whether it has changed."""
        if not self.job or (self.clock() < self._next and not last):
            return False
        self._next = self.clock() + PAUSE_S
        before = self.streams
        try:
            self._client = self._client or self.client_of(self.region)
            self.streams = self._read()
        except Exception:  # no permission, no region, no boto3: the page goes on without the log
            self._next = self.clock() + REFUSED_S
        return self.streams != before

    def _read(self) -> tuple[Stream, ...]:
        answer = self._client.describe_log_streams(logGroupName=GROUP, logStreamNamePrefix=f"{self.job}/", limit=50)
        names = sorted((str(stream["logStreamName"]) for stream in answer.get("logStreams", ())), key=natural_key)
        shown = names[:MAX_STREAMS]
        earlier = {stream.name: stream for stream in self.streams}
        found = []
        for name in shown:
            limit = MAX_LINES // len(shown)
            page = self._client.get_log_events(logGroupName=GROUP, logStreamName=name, limit=limit, startFromHead=False)
            node = shorten(name.partition("/")[2], 60)
            lines = tuple(readable(str(event.get("message", ""))) for event in page.get("events", ())[-limit:])
            if lines or node in earlier:  # the service may answer with an empty page
                found.append(Stream(node, lines) if lines else earlier[node])
        return tuple(found)


def readable(line: str) -> str:
    """Return a line as a terminal would leave it: without colours, and the last state of a progress bar."""
    last = _ESCAPES.sub("", line[: 50 * MAX_LENGTH]).rstrip().rpartition("\r")[2]
    return shorten(clean(last).replace("\n", " "), MAX_LENGTH)
