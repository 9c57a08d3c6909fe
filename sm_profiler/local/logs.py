"""A job's lines in CloudWatch, under the names that SDKs follow."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

TRAINING_GROUP, PROCESSING_GROUP = "/aws/sagemaker/TrainingJobs", "/aws/sagemaker/ProcessingJobs"
FLUSH_S = 0.5
BATCH = 500  # events a call; the API allows 10 000
LONGEST = 200_000  # characters a message; the API allows 256 KiB


class LogStream:
    """One log stream; lines are sent in batches by a thread of its own.

    Args:
        client: a CloudWatch Logs client.
        group: the log group.
        name: the stream, `<job>/algo-1-<epoch>`.
    """

    def __init__(self, client: Any, group: str, name: str) -> None:
        self._client, self._group, self._name = client, group, name
        self._lines: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self.tail: list[str] = []
        with contextlib.suppress(client.exceptions.ResourceAlreadyExistsException):
            client.create_log_group(logGroupName=group)
        client.create_log_stream(logGroupName=group, logStreamName=name)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Take one line; empty ones are dropped, as the API refuses them."""
        if line:
            with self._lock:
                self._lines.append({"timestamp": int(time.time() * 1000), "message": line[:LONGEST]})
                self.tail = [*self.tail[-19:], line]

    def _run(self) -> None:
        while not self._closed.wait(FLUSH_S):
            self.flush()

    def flush(self) -> None:
        """Send what is there."""
        with self._lock:
            lines, self._lines = self._lines, []
        for start in range(0, len(lines), BATCH):
            with contextlib.suppress(Exception):  # the endpoint is going down: the lines have no reader any more
                self._client.put_log_events(
                    logGroupName=self._group, logStreamName=self._name, logEvents=lines[start : start + BATCH]
                )

    def close(self) -> None:
        """Send the rest and stop."""
        self._closed.set()
        self._thread.join()
        self.flush()
