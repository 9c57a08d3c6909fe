"""A user's rule in a process of its own: its output captured, its time limited, its errors told in one line."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

import attrs

from sm_profiler.container import ALLOW_STOP_VARIABLE, JOB_NAME_VARIABLE, STOP_SIGNAL_VARIABLE
from sm_profiler.errors import ProfilerError, SourceError
from sm_profiler.processes import start_module
from sm_profiler.rules.settings import GRACE, Settings
from sm_profiler.rules.status import Status
from sm_profiler.storage import open_storage

IGNORED_FOLDER = ".sagemaker-ignore"
LARGEST_CODE = 10_000_000  # bytes of a rule's file
KEPT_OUTPUT = 1_000_000  # bytes of what it prints that are kept
LAST_WORDS_S = 5.0
log = logging.getLogger("sm_profiler.rules")


@attrs.frozen
class CustomOutcome:
    """How a user's rule ended."""

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
        """Fetch the rule's file and start it.

        Raises:
            SourceError: the file cannot be fetched.
        """
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
        asked = folder / "request.json"
        asked.write_text(json.dumps(request), "utf-8")
        environment = {
            **os.environ,
            GRACE: str(settings.grace_s),
            ALLOW_STOP_VARIABLE: "1" if settings.allow_stop else "0",
        }
        environment |= {"PYTHONUNBUFFERED": "1", JOB_NAME_VARIABLE: settings.job}
        if settings.stop_file:
            environment[STOP_SIGNAL_VARIABLE] = str(settings.stop_file)
        process = start_module(
            "sm_profiler.rules.custom_main",
            [str(asked)],
            environment=environment,
            cwd=Path.cwd(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            new_session=True,
        )
        return cls(process, settings.rule, outcome, settings.output / f"{settings.rule}.log")

    def _listen(self) -> None:
        """Hand the rule's output to the log, and keep it beside the report."""
        kept = 0
        stream = self._process.stdout
        if stream is None:
            return
        with (
            io.TextIOWrapper(stream, encoding="utf-8", errors="replace") as lines,
            self._output.open("w", encoding="utf-8") as opened,
        ):
            for line in lines:
                if kept < KEPT_OUTPUT:
                    opened.write(line)
                    opened.flush()
                    kept += len(line)
                    log.info("[%s] %s", self._rule, line.rstrip("\n"))

    def wait(self, timeout_s: float, stopped: threading.Event) -> CustomOutcome:
        """Wait for the rule's end, at most so long; a stop signal shortens it."""
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
        self._listener.join(LAST_WORDS_S)
        try:
            found = json.loads(self._outcome.read_text("utf-8"))
            return CustomOutcome(Status(found["status"]), str(found["details"]))
        except (OSError, ValueError, KeyError):
            return CustomOutcome(
                Status.ERROR, f"{self._rule} ended with {_end(self._process.returncode)}{self._last_line()}"
            )

    def _last_line(self) -> str:
        try:
            lines = self._output.read_text("utf-8", errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return f": {lines[-1]}" if lines else ""

    def kill(self) -> None:
        """End the rule and all it started."""
        with contextlib.suppress(ProcessLookupError):  # it may have ended already
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._listener.join(LAST_WORDS_S)


def _end(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def fetch_code(where: str, folder: Path) -> Path:
    """The rule's file on this machine: an s3:// URI is fetched, a path is taken as it is.

    Raises:
        SourceError: it does not exist, cannot be fetched, or is too large for a rule.
    """
    if where.startswith("s3://"):
        base, _, name = where.rpartition("/")
        storage = open_storage(base)
        try:
            data = storage.read(name)
        except ProfilerError as error:
            raise SourceError(f"the rule's file {where} cannot be fetched: {error}") from None
        if len(data) > LARGEST_CODE:
            raise SourceError(f"the rule's file {where} is larger than {LARGEST_CODE // 1_000_000} MB")
        code = folder / name
        code.write_bytes(data)
        return code
    path = Path(unquote(urlsplit(where).path)) if where.startswith("file://") else Path(where)
    if not path.is_file():
        raise SourceError(f"the rule's file {where} does not exist")
    return path
