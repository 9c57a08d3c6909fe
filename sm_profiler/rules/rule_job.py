"""Inputs and outputs of a rule job: environment, the processing job's configuration, stop signal, status file."""

from __future__ import annotations

import contextlib
import difflib
import json
import logging
import math
import os
import sys
import time
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import attrs

from sm_profiler.container import (
    EXIT_MESSAGE,
    JOB_NAME_VARIABLE,
    PROCESSING_CONFIG,
    RULE_INPUT,
    RULE_OUTPUT,
    STOP_SIGNAL_VARIABLE,
    rooted,
)
from sm_profiler.errors import ConfigError
from sm_profiler.formats.layout import OUTPUT
from sm_profiler.printable import logger_for
from sm_profiler.settings import SOURCE

TRUE = {"1", "true", "yes", "on"}

# Parameters of the runner. All others belong to the rule, but for names in capitals: those are the container's variables.
RULE, CODE, TIMEOUT, FOLLOW, COMPAT, STOP_JOB, GRACE = (
    "rule_to_invoke",
    "source_s3_uri",
    "rule_timeout_secs",
    "rule_follow",
    "rule_compat",
    "rule_allow_stop_training",
    "rule_stop_grace_time_secs",
)
RUNNER_PARAMETERS = {RULE, CODE, TIMEOUT, FOLLOW, COMPAT, STOP_JOB, GRACE, "action_json"}
DEFAULT_RULE = "ProfilerReport"
DEFAULT_GRACE_S, DEFAULT_TIMEOUT_S = 60.0, 600.0
MAX_SECONDS = 1e9  # thirty years; threading's limit is above it
MIN_RESEMBLANCE = 0.8  # of a variable and a parameter, for a warning
STATUS_FILE = "rule-status.json"
MAX_DETAILS = 1024  # characters of StatusDetails
log = logger_for("sm_profiler.rules")


def log_to_stdout(form: str = "%(asctime)s %(levelname)s %(message)s") -> None:
    """Log to standard output, which is the job's log, without botocore's lines about credentials and endpoints."""
    logging.basicConfig(level=logging.INFO, format=form, stream=sys.stdout)
    logging.getLogger("botocore").setLevel(logging.WARNING)


class Status(str, Enum):
    IN_PROGRESS = "InProgress"
    NO_ISSUES = "NoIssuesFound"
    ISSUES = "IssuesFound"
    ERROR = "Error"
    STOPPING = "Stopping"
    STOPPED = "Stopped"


def write_status(folder: Path, status: Status, details: str = "") -> None:
    """Write `rule-status.json` atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"RuleEvaluationStatus": status.value, "StatusDetails": details[:MAX_DETAILS]})
    temporary = folder / f"{STATUS_FILE}.tmp"
    temporary.write_text(text + "\n", "utf-8")
    temporary.replace(folder / STATUS_FILE)


@attrs.frozen
class Settings:
    """Settings of a rule job.

    Attributes:
        source: the profile: a folder or an s3:// URI; "" if there is none.
        output: folder of all output; the service uploads it.
        rule: name of the rule that decides the status.
        code: file with the user's rule (path or s3:// URI); "" for a built-in rule.
        parameters: the rule's parameters, all strings.
        stop_file: exists once the training job is over.
        grace_s: seconds after that until the rule has to end.
        timeout_s: seconds that a user's rule may run after the end of the job's data.
        follow: wait for more data until the job is over.
        compat: "service" or None.
        allow_stop: True if an action of a user's rule may stop the training job.
        job: the training job's name; "" if unknown.
        message: file for what DescribeProcessingJob shows once the container has ended.
    """

    source: str
    output: Path
    rule: str = DEFAULT_RULE
    code: str = ""
    parameters: dict[str, str] = attrs.field(factory=dict)
    stop_file: Path | None = None
    grace_s: float = DEFAULT_GRACE_S
    timeout_s: float = DEFAULT_TIMEOUT_S
    follow: bool = False
    compat: str | None = None
    allow_stop: bool = False
    job: str = ""
    message: Path | None = None

    def write_message(self, details: str) -> None:
        if self.message is not None:
            with contextlib.suppress(OSError):
                self.message.parent.mkdir(parents=True, exist_ok=True)
                self.message.write_text(details[:MAX_DETAILS], "utf-8")

    def stop_signalled(self) -> bool:
        """Return True if the stop signal is older than the grace time."""
        return self.stop_file is not None and _is_older(self.stop_file, self.grace_s)


def _is_older(stop_file: Path, grace_s: float) -> bool:
    try:
        signalled = stop_file.stat().st_mtime
        text = stop_file.read_text("utf-8", errors="replace").strip()
    except OSError:
        return False
    with contextlib.suppress(ValueError):  # without a time in it, the time of the file counts
        found = float(text)
        signalled = found if math.isfinite(found) else signalled
    return time.time() - signalled >= grace_s


def stop_signalled() -> bool:
    """Return True if the stop signal of this process's environment is older than its grace time."""
    stop_file = os.environ.get(STOP_SIGNAL_VARIABLE)
    return bool(stop_file) and _is_older(Path(str(stop_file)), _seconds(os.environ, GRACE, DEFAULT_GRACE_S))


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Read the settings of this container.

    Raises:
        ConfigError: a value is not a number, or the configuration is not a JSON object; one line.
    """
    config = _config(rooted(PROCESSING_CONFIG, environ))
    configured = _texts(config.get("Environment"))
    given = {**configured, **_parameters_in(environ, configured)}
    source, continuous = _source(config, {**given, **environ})
    stop_file = environ.get(STOP_SIGNAL_VARIABLE) or given.get(STOP_SIGNAL_VARIABLE)
    follow = given.get(FOLLOW, "")
    return Settings(
        source=source,
        output=rooted(RULE_OUTPUT, environ) / OUTPUT,
        rule=given.get(RULE) or DEFAULT_RULE,
        code=given.get(CODE, ""),
        parameters=of_rule(given),
        stop_file=rooted(stop_file, environ) if stop_file else None,
        grace_s=_seconds(given, GRACE, DEFAULT_GRACE_S),
        timeout_s=_seconds(given, TIMEOUT, DEFAULT_TIMEOUT_S),
        follow=follow.lower() in TRUE if follow else bool(stop_file) or continuous,
        compat=given.get(COMPAT) or None,
        allow_stop=given.get(STOP_JOB, "").lower() in TRUE,
        message=rooted(EXIT_MESSAGE, environ),
        job=environ.get(JOB_NAME_VARIABLE)
        or given.get(JOB_NAME_VARIABLE)
        or str(config.get("TrainingJobArn") or "").rpartition("/")[2],
    )


def of_rule(given: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters that belong to the rule, not to the runner or the container."""
    return {name: value for name, value in given.items() if name not in RUNNER_PARAMETERS and not name.isupper()}


def _config(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path} does not contain a JSON object")
    return found


def _texts(found: object) -> dict[str, str]:
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def _parameters_in(environ: Mapping[str, str], configured: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters in the environment: the runner's, `<RuleName>_<parameter>`, and those of a built-in rule.

    The environment of a shell has many other variables: only names of parameters count, and a variable that resembles one
    is logged.
    """
    from sm_profiler.rules.profiler_report import all_rules  # loads numpy; this module does not
    from sm_profiler.rules.rule import INTERVAL

    rules = {rule.name().lower(): rule for rule in all_rules()}
    own = {INTERVAL, *RUNNER_PARAMETERS}
    runner = {**configured, **environ}
    deciding = None if runner.get(CODE) else rules.get(str(runner.get(RULE)).lower())
    if deciding is not None:
        own |= deciding.parameter_names()
    found = {
        name: value
        for name, value in environ.items()
        if name in own or ("_" in name and name.partition("_")[0].lower() in rules)
    }
    if not runner.get(CODE):  # a rule's own process has the names of its parameters
        of_rules = {f"{rule.name()}_{name}" for rule in rules.values() for name in rule.parameter_names()}
        for name in environ.keys() - found.keys():
            near = (
                () if name.isupper() else difflib.get_close_matches(name, own | of_rules, n=1, cutoff=MIN_RESEMBLANCE)
            )
            if near:
                log.warning("ignoring the variable %s, which is not a parameter: did you mean %s?", name, near[0])
    return found


def _source(config: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[str, bool]:
    """Return the profile's location and whether more data may come: from environment, mounted folder or configuration."""
    if source := SOURCE.text(environ):
        return source, False
    listed = config.get("ProcessingInputs")
    inputs = [
        each["S3Input"]
        for each in (listed if isinstance(listed, list) else ())
        if isinstance(each, dict) and isinstance(each.get("S3Input"), dict)
    ]
    own = [each for each in inputs if str(each.get("LocalPath", "")).rstrip("/") == RULE_INPUT] or inputs[:1]
    continuous = any(each.get("S3InputMode") == "Continuous" for each in own)
    mounted = rooted(RULE_INPUT, environ)
    if mounted.is_dir() and any(mounted.iterdir()):
        return str(mounted), continuous
    uri = next((str(each["S3Uri"]) for each in own if each.get("S3Uri")), "")
    return uri or (str(mounted) if mounted.is_dir() else ""), continuous


def _seconds(given: Mapping[str, str], name: str, default: float) -> float:
    try:
        seconds = float(given.get(name) or default)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < MAX_SECONDS:
        raise ConfigError(f"{name} must be a number of seconds, not {given[name][:60]!r}")
    return seconds
