"""A user's rule in a separate process: captured output, limited time, errors in one line."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

import attrs

from sm_profiler.container import JOB_NAME_VARIABLE, STOP_SIGNAL_VARIABLE
from sm_profiler.errors import ConfigError, ProfilerError, SourceError
from sm_profiler.printable import logger_for
from sm_profiler.processes import start_module
from sm_profiler.rules.settings import GRACE, Settings, Status
from sm_profiler.settings import ALLOW_STOP
from sm_profiler.signals import StopEvent
from sm_profiler.storage import open_storage

IGNORED_FOLDER = ".sagemaker-ignore"  # the service does not upload it
MAX_CODE_BYTES = 10_000_000
MAX_OUTPUT_CHARACTERS = 1_000_000  # kept of what a rule prints
MAX_LINE_CHARACTERS = 8192  # longer lines are split
MAX_OUTCOME_BYTES = 65_536
LAST_OUTPUT_S = 5.0  # wait for output after the end of the process
log = logger_for("sm_profiler.rules")


@attrs.frozen
class CustomOutcome:
    """Status and details of a user's rule that has ended."""

    status: Status
    details: str = ""


class CustomProcess:
    """A running user's rule."""

    def __init__(self, process: subprocess.Popen[bytes], rule: str, outcome: Path, output: Path) -> None:
        self._process = process
        self._rule = rule
        self._outcome = outcome
        self._output = output
        self._listener = threading.Thread(target=self._listen, name=f"output of {rule}", daemon=True)
        self._listener.start()

    @classmethod
    def start(cls, settings: Settings, source_uri: str) -> CustomProcess:
        """Fetch the rule's file and start the process.

        Raises:
            ConfigError: the rule's name cannot be that of a class.
            SourceError: the file cannot be fetched.
        """
        if not settings.rule.isidentifier():
            raise ConfigError(f"rule_to_invoke must be the name of a class, not {settings.rule[:60]!r}")
        folder = settings.output / IGNORED_FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        code = fetch_code(settings.code, folder)
        outcome = folder / "outcome.json"
        outcome.unlink(missing_ok=True)
        request = {
            "code": str(code),
            "rule": settings.rule,
            "parameters": settings.parameters,
            "source": source_uri,
            "output": str(settings.output),
            "outcome": str(outcome),
            "follow": settings.follow,
        }
        request_file = folder / "request.json"
        request_file.write_text(json.dumps(request), "utf-8")
        environment = {
            **os.environ,
            GRACE: str(settings.grace_s),
            ALLOW_STOP.name: "1" if settings.allow_stop else "0",
        }
        environment |= {"PYTHONUNBUFFERED": "1", JOB_NAME_VARIABLE: settings.job}
        if settings.stop_file:
            environment[STOP_SIGNAL_VARIABLE] = str(settings.stop_file)
        process = start_module(
            "sm_profiler.rules.custom_main",
            [str(request_file)],
            environment=environment,
            cwd=Path.cwd(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            new_session=True,
        )
        return cls(process, settings.rule, outcome, settings.output / f"{settings.rule}.log")

    def _listen(self) -> None:
        """Copy the rule's output to the log and to a file next to the report."""
        kept = 0
        stream = self._process.stdout
        if stream is None:
            return
        with (
            io.TextIOWrapper(stream, encoding="utf-8", errors="replace") as lines,
            self._output.open("w", encoding="utf-8") as copy,
        ):
            while line := lines.readline(MAX_LINE_CHARACTERS):
                if kept < MAX_OUTPUT_CHARACTERS:
                    copy.write(line)
                    copy.flush()
                    kept += len(line)
                    log.info("[%s] %s", self._rule, line.rstrip("\n"))

    def wait(self, timeout_s: float, stopped: StopEvent) -> CustomOutcome:
        """Wait for the end of the rule, at most `timeout_s` seconds or until `stopped` is set."""
        end = time.monotonic() + timeout_s
        while self._process.poll() is None:
            if stopped.is_set():
                self.kill()
                return CustomOutcome(Status.STOPPED, f"{self._rule} was stopped")
            if time.monotonic() > end:
                self.kill()
                return CustomOutcome(
                    Status.ERROR, f"{self._rule} did not end within {timeout_s:.0f} s after the job's data"
                )
            time.sleep(0.1)
        self._listener.join(LAST_OUTPUT_S)
        try:
            with self._outcome.open("rb") as opened:
                found = json.loads(opened.read(MAX_OUTCOME_BYTES))
            return CustomOutcome(Status(found["status"]), str(found["details"]))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return CustomOutcome(
                Status.ERROR, f"{self._rule} ended with {_describe(self._process.returncode)}{self._last_line()}"
            )

    def _last_line(self) -> str:
        try:
            lines = self._output.read_text("utf-8", errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return f": {lines[-1]}" if lines else ""

    def kill(self) -> None:
        """Kill the rule and all processes that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._listener.join(LAST_OUTPUT_S)


def _describe(returncode: int) -> str:
    return f"signal {-returncode}" if returncode < 0 else f"exit code {returncode}"


def fetch_code(location: str, folder: Path) -> Path:
    """Return the rule's file on this machine: an s3:// URI is downloaded to `folder`, a path is used as it is.

    Raises:
        SourceError: it does not exist, cannot be fetched, or is too large.
    """
    if location.startswith("s3://"):
        base, _, name = location.rpartition("/")
        storage = open_storage(base)
        try:
            data = storage.read(name)
        except ProfilerError as error:
            raise SourceError(f"cannot fetch the rule's file {location}: {error}") from None
        if len(data) > MAX_CODE_BYTES:
            raise SourceError(f"the rule's file {location} is larger than {MAX_CODE_BYTES // 1_000_000} MB")
        code = folder / name
        code.write_bytes(data)
        return code
    path = Path(unquote(urlsplit(location).path)) if location.startswith("file://") else Path(location)
    if not path.is_file():
        raise SourceError(f"the rule's file {location} does not exist")
    return path
