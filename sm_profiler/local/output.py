"""Output of a job: log streams in CloudWatch, under the names that SDKs read, and the values of MetricDefinitions.

Metrics are matched in a separate process (this module run as a program): a user's regular expression can take practically
forever on one line, and Python's `re` keeps the interpreter lock meanwhile. Matched in the endpoint, it would freeze every
job and client.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import math
import os
import queue
import re
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, Any

from sm_profiler.local.records import MAX_REASON
from sm_profiler.processes import Helper, receive_message, send_message

TRAINING_GROUP, PROCESSING_GROUP = "/aws/sagemaker/TrainingJobs", "/aws/sagemaker/ProcessingJobs"
FLUSH_S = 0.5
BATCH = 500  # events per call; the API allows 10 000
MAX_STREAM = 100_000_000  # characters of one stream, which moto keeps in memory
MAX_MESSAGE = 200_000  # characters; the API allows 256 KiB


class LogStream:
    """One log stream; its thread sends lines in batches.

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


_ERRORS = tuple(
    name for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, Warning)
    and not name.startswith("Stop")
)  # fmt: skip


class ErrorLines:
    """The part of a script's output that AWS's training toolkit quotes: from the first line on that names an error."""

    def __init__(self) -> None:
        self._lines: dict[str, None] = {}
        self._size = 0

    def add(self, line: str) -> None:
        if self._size < MAX_REASON and (self._lines or any(name in line for name in _ERRORS)):
            self._lines[line.strip(" :\n")] = None
            self._size += len(line) + 1

    def __str__(self) -> str:
        return "\n ".join(self._lines)


MATCH_S = 0.5  # CPU time that one expression may take on one line
ANSWER_S = 60.0  # wall time for all expressions on one line, on a busy machine too
CLOSE_S = 5.0  # for the lines still queued when the job ends
MAX_QUEUED = 10_000  # lines
_END = None


class MetricMatcher:
    """Finds metrics in the lines of one job; a thread feeds the matching process.

    Args:
        definitions: MetricDefinitions of the job.
        on_value: receives name and value of each match.
        on_problem: receives a line for each expression that is given up, and the number of lines not searched.
    """

    def __init__(
        self,
        definitions: list[dict[str, str]],
        on_value: Callable[[str, float], None],
        on_problem: Callable[[str], None],
    ) -> None:
        self._definitions = definitions
        self._on_value, self._on_problem = on_value, on_problem
        self._lines: queue.Queue[str | None] = queue.Queue(MAX_QUEUED)
        self.skipped = 0  # lines that were not searched
        self._helper: Helper | None = None
        if definitions:
            self._helper = Helper(__name__, [json.dumps([entry["Regex"] for entry in definitions])])
            self._thread = threading.Thread(target=self._run, args=(self._helper,), daemon=True)
            self._thread.start()

    def search(self, line: str) -> None:
        """Queue a line; never blocks."""
        if self._helper is None:
            return
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self.skipped += 1

    def close(self) -> None:
        """Search the queued lines for a few seconds at most, then stop."""
        if self._helper is None:
            return
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(_END)
        self._thread.join(CLOSE_S)
        self._helper.process.kill()
        self._thread.join()
        self._helper.close()
        with contextlib.suppress(queue.Empty):
            while True:
                self.skipped += self._lines.get_nowait() is not _END
        if self.skipped:
            self._on_problem(f"MetricDefinitions: {self.skipped} lines were not searched")

    def _run(self, helper: Helper) -> None:
        try:
            while (line := self._lines.get()) is not _END:
                self._search(helper, line)
        except (OSError, EOFError):  # the matching process ended: killed by close, or by the system
            self.skipped += 1

    def _search(self, helper: Helper, line: str) -> None:
        send_message(helper.requests, line.encode("utf-8", "surrogatepass"))
        helper.requests.flush()
        if not select.select([helper.answers], [], [], ANSWER_S)[0]:
            raise TimeoutError
        for number, value in json.loads(receive_message(helper.answers)):
            name = self._definitions[number]["Name"]
            if value is None:
                self._on_problem(f"MetricDefinitions: the Regex of {name} took over {MATCH_S} s on one line; given up")
            else:
                self._on_value(name, value)


def expression_problem(expression: str) -> str:
    """Return why Python cannot compile a regular expression; "" if it can."""
    try:
        re.compile(expression)
    except (re.error, OverflowError, RecursionError) as error:
        return str(error)
    return ""


class _TimeOutError(Exception):
    pass


def _time_out(*_: Any) -> None:
    raise _TimeOutError


def _values(expression: re.Pattern[str], text: str) -> list[float | None]:
    """Return the value in a line, as a list of at most one; None if the expression takes too long."""
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, MATCH_S)
        match = expression.search(text)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    except _TimeOutError:
        return [None]
    value = float(match[1]) if match else math.nan
    return [value] if math.isfinite(value) else []


def serve(requests: IO[bytes], answers: IO[bytes], expressions: list[str]) -> None:
    """Answer each line with JSON: [number, value] pairs; value null: this expression is given up."""
    signal.signal(signal.SIGVTALRM, _time_out)
    active = {number: re.compile(expression) for number, expression in enumerate(expressions)}
    while True:
        text = receive_message(requests).decode("utf-8", "surrogatepass")
        found: list[tuple[int, float | None]] = []
        for number, expression in active.items():
            with contextlib.suppress(ValueError, IndexError, TypeError):  # no group, or its text is not a number
                found += [(number, value) for value in _values(expression, text)]
        for number, value in found:
            if value is None:
                del active[number]
        send_message(answers, json.dumps(found).encode())
        answers.flush()


if __name__ == "__main__":
    with (
        contextlib.suppress(EOFError),
        os.fdopen(int(sys.argv[1]), "rb") as lines,
        os.fdopen(int(sys.argv[2]), "wb") as out,
    ):
        serve(lines, out, json.loads(sys.argv[3]))
