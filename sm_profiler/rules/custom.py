"""A user's rule in a separate process: captured output, limited time, errors in one line.

The runner starts it (`CustomProcess`); the process imports the file, builds the rule, feeds it until the job is over and
writes the outcome (`main`).
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

import attrs

import sm_profiler
from sm_profiler.container import JOB_NAME_VARIABLE, STOP_SIGNAL_VARIABLE
from sm_profiler.errors import ConfigError, ProfilerError, SourceError
from sm_profiler.folding import Following, windows
from sm_profiler.formats.layout import IGNORED_FOLDER, MINUTE_US
from sm_profiler.formatting import strict_json
from sm_profiler.printable import logger_for
from sm_profiler.processes import start_module
from sm_profiler.rules.base import interval
from sm_profiler.rules.results import REPORTS
from sm_profiler.rules.rule import INTERVAL, SCAN_INTERVAL_US, Rule, RuleEvaluationConditionMet, invoke_rule
from sm_profiler.rules.rule_job import (
    GRACE,
    MAX_DETAILS,
    RUNNER_PARAMETERS,
    Settings,
    Status,
    log_to_stdout,
    stop_signalled,
)
from sm_profiler.rules.trial import ProfilerTrial
from sm_profiler.settings import ALLOW_STOP, POLL_S
from sm_profiler.source import open_source
from sm_profiler.storage import open_storage
from sm_profiler.threads import StopEvent

MAX_CODE_BYTES = 10_000_000
MAX_OUTPUT_CHARACTERS = 1_000_000  # kept of what a rule prints
MAX_LINE_CHARACTERS = 8192  # longer lines are split
MAX_OUTCOME_BYTES = 65_536
LAST_OUTPUT_S = 5.0  # wait for output after the end of the process
log = logger_for("sm_profiler.rules")

MAX_REPORT_BYTES = 50_000_000
UNRELATED_VARIABLES = re.compile(r"\w+_proxy|npm_\w+")  # lower-case variables that are not meant for a rule


@attrs.frozen
class CustomOutcome:
    """Status and details of a user's rule that has ended."""

    status: Status
    details: str = ""


class CustomProcess:
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
            "sm_profiler.rules.custom",
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


# The process of the rule


def load_module(path: Path) -> ModuleType:
    """Import a user's file.

    Raises:
        ConfigError: it cannot be imported; one line with reason and line number.
    """
    with contextlib.suppress(ImportError):
        sm_profiler.install_as_smdebug()
    name = f"rule_file_{path.stem}"  # a prefix, so that the file may have the name of any module
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path.name} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # attrs and dataclasses look their module up
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise ConfigError(f"cannot import {path.name}: {error.msg} (line {error.lineno})") from None
    except BaseException as error:
        line = _line_of(error, path)
        place = f" (line {line})" if line else ""
        raise ConfigError(f"cannot import {path.name}: {type(error).__name__}: {error}{place}") from error
    return module


def _line_of(error: BaseException, path: str | Path) -> int | None:
    """Return the last line of a user's file that an error passed through; None if it passed through none."""
    absolute = os.path.abspath(path)  # as importlib names the file of a module
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == absolute]
    return lines[-1] if lines else None


def _place_of(error: BaseException, path: str | Path) -> str:
    line = _line_of(error, path)
    return f" ({Path(path).name}, line {line})" if line else ""


def find_rule(module: ModuleType, name: str, file: str) -> type[Any]:
    """Return the class of a user's rule.

    Raises:
        ConfigError: there is no class of that name, or it is not a rule.
    """
    found = getattr(module, name, None)
    if not inspect.isclass(found):
        classes = [
            key for key, value in vars(module).items() if inspect.isclass(value) and value.__module__ == module.__name__
        ]
        raise ConfigError(f"{file} has no class {name}; it has: {', '.join(classes) or 'none'}")
    if not issubclass(found, Rule) and not (
        callable(getattr(found, "update", None)) and callable(getattr(found, "result", None))
    ):
        raise ConfigError(
            f"{name} in {file} is not a rule: it needs the methods update(window) and result(), or the base class Rule"
        )
    return found


def parameter_names(rule: type[Any]) -> set[str]:
    return set(list(inspect.signature(rule).parameters)[1 if issubclass(rule, Rule) else 0 :])


def own_parameters(rule: type[Any], given: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the rule's parameters from the configuration and from the environment.

    Both may use `<Rule>_<parameter>`. Of the environment, variables with this prefix count and those that the
    constructor takes; other lower-case names are logged.
    """
    known = parameter_names(rule)
    prefix = f"{rule.__name__}_".lower()

    def without_prefix(name: str) -> str:
        return name[len(prefix) :] if name not in known and name.lower().startswith(prefix) else name

    candidates = {
        name: value
        for name, value in environ.items()
        if name not in RUNNER_PARAMETERS and name not in given and name != INTERVAL and not name.isupper()
    }
    own = {name: value for name, value in candidates.items() if name in known or name.lower().startswith(prefix)}
    unknown = [
        name
        for name in sorted(candidates.keys() - own.keys())
        if re.fullmatch("[a-z][a-z0-9_]*", name) and not UNRELATED_VARIABLES.fullmatch(name)
    ]
    if unknown:
        offered = ", ".join(sorted(known)) or "none"
        log.warning("ignoring variables that are not parameters of %s: %s; it has: %s", rule.__name__, ", ".join(unknown), offered)  # fmt: skip
    return {without_prefix(name): value for name, value in (*own.items(), *given.items())}


def build_rule(rule: type[Any], parameters: Mapping[str, str], trial: Any = None) -> Any:
    """Create the rule with the given parameters; values are strings.

    Raises:
        ConfigError: the constructor does not take a parameter, or fails.
    """
    takes_all = any(each.kind is each.VAR_KEYWORD for each in inspect.signature(rule).parameters.values())
    first = [trial] if issubclass(rule, Rule) else []
    known = parameter_names(rule)
    given = {name: value for name, value in parameters.items() if takes_all or name in known}
    unknown = [name for name in parameters if name not in given and name != INTERVAL]
    if unknown:
        raise ConfigError(
            f"{rule.__name__} has no parameter {unknown[0]!r}; it has: {', '.join(sorted(known)) or 'none'}"
        )
    try:
        return rule(*first, **given)
    except Exception as error:
        traceback.print_exc()
        place = _place_of(error, str(getattr(sys.modules.get(rule.__module__), "__file__", "")))
        raise ConfigError(f"cannot create {rule.__name__}: {type(error).__name__}: {error}{place}") from error


def evaluate(request: Mapping[str, Any]) -> tuple[Status, str, Any]:
    path, name = Path(request["code"]), str(request["rule"])
    kind = find_rule(load_module(path), name, path.name)
    parameters = own_parameters(kind, request["parameters"], os.environ)
    if issubclass(kind, Rule):
        trial = ProfilerTrial(name, request["source"], request["output"], follow=request["follow"])
        rule = build_rule(kind, parameters, trial)
        try:
            invoke_rule(rule, raise_eval_cond=True)
        except RuleEvaluationConditionMet as met:
            report = completed(rule.report, parameters, fired=True)
            # a rule that overrides neither is evaluated window by window, and has no steps
            by_window = kind.invoke is Rule.invoke and kind.invoke_at_step is Rule.invoke_at_step
            details = met_text(name, met.step, report, int(rule.scan_interval_us)) if by_window else str(met)
            return Status.ISSUES, details, report
        return Status.NO_ISSUES, "", completed(rule.report, parameters, fired=False)
    rule = build_rule(kind, parameters)
    interval_us = interval(parameters.get(INTERVAL, SCAN_INTERVAL_US))
    follow: Any = Following(stop=stop_signalled, poll_s=POLL_S.read_or_default()) if request["follow"] else False
    met_at = None
    source = open_source(request["source"], cache=False)
    for step, window in enumerate(windows(source, follow=follow, interval_us=interval_us)):
        if rule.update(window) is True and met_at is None:
            met_at = step
    found = rule.result()
    fired = met_at is not None or (isinstance(found, dict) and bool(found.get("RuleTriggered")))
    found = completed(found, parameters, fired=fired)
    return (
        (Status.ISSUES, met_text(name, met_at, found, interval_us), found) if fired else (Status.NO_ISSUES, "", found)
    )


def completed(report: Any, parameters: Mapping[str, str], *, fired: bool) -> Any:
    """Return a rule's report with the keys of all reports; `RuleTriggered` agrees with the status.

    Args:
        report: what the rule reports; anything but a dict is returned as it is.
        parameters: those that were given.
        fired: the rule's condition is met.
    """
    if not isinstance(report, dict):
        return report
    found = {"RuleTriggered": 0, "Violations": 0, "Details": {}, "Datapoints": 0, "RuleParameters": "", **report}
    if fired and not found["RuleTriggered"]:
        found["RuleTriggered"] = 1
    found["RuleParameters"] = found["RuleParameters"] or "\n".join(
        f"{name}:{value}" for name, value in parameters.items() if name != "action_str"
    )
    return found


def met_text(name: str, window: int | None, found: object, interval_us: int = MINUTE_US) -> str:
    """Return the sentence on a condition that is met: when, and how many of the rule's observations met it.

    Args:
        window: number of the first window in which it was met, from 0; None if only the whole job shows it.
        found: the rule's report.
        interval_us: length of a window.
    """
    text = f"The condition of the rule {name} is met"
    if window is not None:
        number = window + 1
        unit = f"minute {number}" if interval_us == MINUTE_US else f"window {number} of {interval_us / 1e6:g} s"
        text += f", first in {unit}"
    counts = [found.get(key) for key in ("Violations", "Datapoints")] if isinstance(found, dict) else []
    if len(counts) == 2 and all(isinstance(count, (int, float)) and count for count in counts):  # both are counted
        text += f": {counts[0]} of {counts[1]} observations"
    return text


def write_report(report: Any, rule: str, output: str) -> None:
    """Write the rule's own report to `profiler-reports/<Rule>.json`.

    Raises:
        ProfilerError: it cannot be converted to JSON, or is too large.
    """
    try:
        data = (strict_json(report, default=str) + "\n").encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ProfilerError(f"cannot convert the report of {rule} to JSON: {error}") from None
    if len(data) > MAX_REPORT_BYTES:
        raise ProfilerError(f"the report of {rule} is larger than {MAX_REPORT_BYTES // 1_000_000} MB")
    folder = Path(output, REPORTS)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{rule}.json").write_bytes(data)


def main(request_file: str) -> int:
    """Run one request, and write the outcome to the file that it names."""
    log_to_stdout("%(levelname)s %(message)s")
    request = json.loads(Path(request_file).read_text("utf-8"))
    try:
        status, details, report = evaluate(request)
        if report is not None:
            write_report(report, request["rule"], request["output"])
    except ProfilerError as error:
        status, details = Status.ERROR, str(error)
    except Exception as error:  # any error of a user's rule is its outcome
        traceback.print_exc()
        place = _place_of(error, request["code"])
        status, details = Status.ERROR, f"{request['rule']} failed: {type(error).__name__}: {error}{place}"
    outcome = {"status": status.value, "details": " ".join(details.split())[:MAX_DETAILS]}
    temporary = Path(f"{request['outcome']}.tmp")
    temporary.write_text(json.dumps(outcome), "utf-8")
    temporary.replace(request["outcome"])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
