"""Log streams in CloudWatch, under the names that SDKs read."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

TRAINING_GROUP, PROCESSING_GROUP = "/aws/sagemaker/TrainingJobs", "/aws/sagemaker/ProcessingJobs"
FLUSH_S = 0.5
BATCH = 500  # events per call; the API allows 10 000
MAX_STREAM = 100_000_000  # characters of one stream, which moto keeps in memory
MAX_MESSAGE = 200_000  # characters; the API allows 256 KiB


class LogStream:
    """One log stream; a thread of its own sends lines in batches.

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
        self._size = 0
        self.dropped = 0  # lines
        with contextlib.suppress(client.exceptions.ResourceAlreadyExistsException):
            client.create_log_group(logGroupName=group)
        client.create_log_stream(logGroupName=group, logStreamName=name)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Queue one line; empty lines are dropped, since the API refuses them, and lines beyond the limit are counted."""
        if line:
            with self._lock:
                self.tail = [*self.tail[-19:], line]
                self._size += len(line)
                if self._size > MAX_STREAM:
                    self.dropped += 1
                    return
                self._lines.append({"timestamp": int(time.time() * 1000), "message": line[:MAX_MESSAGE]})

    def _run(self) -> None:
        while not self._closed.wait(FLUSH_S):
            self.flush()

    def flush(self) -> None:
        """Send queued lines."""
        with self._lock:
            lines, self._lines = self._lines, []
        for start in range(0, len(lines), BATCH):
            with contextlib.suppress(Exception):  # the endpoint is shutting down and has no readers left
                self._client.put_log_events(
                    logGroupName=self._group, logStreamName=self._name, logEvents=lines[start : start + BATCH]
                )

    def close(self) -> None:
        """Send the remaining lines and stop."""
        self._closed.set()
        self._thread.join()
        if self.dropped:
            self._size = 0
            self.write(f"{self.dropped} more lines: the local endpoint keeps {MAX_STREAM:,} characters per log stream")
        self.flush()
