"""What a rule job was told: environment, the processing job's configuration, the stop signal."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from sm_profiler.container import (
    JOB_NAME_VARIABLE,
    PROCESSING_CONFIG,
    RULE_INPUT,
    RULE_OUTPUT,
    SOURCE_VARIABLE,
    STOP_SIGNAL_VARIABLE,
    rooted,
)
from sm_profiler.errors import ConfigError

PROFILER_OUTPUT = "profiler-output"
GRACE = "rule_stop_grace_time_secs"
TRUE = {"1", "true", "yes", "on"}

# Words of ours and the service's among the parameters.  What remains belongs to the rule, but for names all in capitals:
# those are the container's own variables.
RULE, CODE, TIMEOUT, FOLLOW, COMPAT, STOP_JOB = (
    "rule_to_invoke",
    "source_s3_uri",
    "rule_timeout_secs",
    "rule_follow",
    "rule_compat",
    "rule_allow_stop_training",
)
WORDS = {RULE, CODE, TIMEOUT, FOLLOW, COMPAT, STOP_JOB, GRACE, "action_json"}
DEFAULT_RULE = "ProfilerReport"


@attrs.frozen
class Settings:
    """A rule job's settings.

    Attributes:
        source: where the profile lies: a folder or an s3:// URI; "" if nothing told.
        output: the folder for what is written; the service uploads it.
        rule: which rule decides the status.
        code: file with the user's rule (path or s3:// URI), "" for a built-in rule.
        parameters: the rule's own, all strings.
        stop_file: exists once the training job is over.
        grace_s: so long after that the rule ends in any case.
        timeout_s: how long a user's rule may go on after the job's end.
        follow: wait for more until the job is over.
        compat: "service" or None.
        allow_stop: whether an action of a user's rule may stop the training job.
        job: the training job's name, "" if unknown.
    """

    source: str
    output: Path
    rule: str = DEFAULT_RULE
    code: str = ""
    parameters: dict[str, str] = attrs.field(factory=dict)
    stop_file: Path | None = None
    grace_s: float = 60.0
    timeout_s: float = 600.0
    follow: bool = False
    compat: str | None = None
    allow_stop: bool = False
    job: str = ""

    def stop_signalled(self) -> bool:
        """Whether the stop signal has been standing for longer than the grace time."""
        return self.stop_file is not None and _is_over(self.stop_file, self.grace_s)


def _is_over(stop_file: Path, grace_s: float) -> bool:
    try:
        signalled = stop_file.stat().st_mtime
        text = stop_file.read_text("utf-8", errors="replace").strip()
    except OSError:
        return False
    with contextlib.suppress(ValueError):  # no time in it: that of the file counts
        signalled = float(text)
    return time.time() - signalled >= grace_s


def read_stop_signal() -> bool:
    """Whether this process's environment names a stop signal that has been standing for longer than its grace time."""
    stop_file = os.environ.get(STOP_SIGNAL_VARIABLE)
    return bool(stop_file) and _is_over(Path(str(stop_file)), float(os.environ.get(GRACE) or 60))


def read_settings(environ: Mapping[str, str]) -> Settings:
    """The settings of this container.

    Raises:
        ConfigError: a number that is none, or a configuration that is no JSON object; one line.
    """
    config = _config(rooted(PROCESSING_CONFIG, environ))
    told = {**_texts(config.get("Environment")), **_parameters_in(environ)}
    source, continuous = _source(config, {**told, **environ})
    stop_file = environ.get(STOP_SIGNAL_VARIABLE) or told.get(STOP_SIGNAL_VARIABLE)
    follow = told.get(FOLLOW, "")
    return Settings(
        source=source,
        output=rooted(RULE_OUTPUT, environ) / PROFILER_OUTPUT,
        rule=told.get(RULE) or DEFAULT_RULE,
        code=told.get(CODE, ""),
        parameters={name: value for name, value in told.items() if name not in WORDS and not name.isupper()},
        stop_file=rooted(stop_file, environ) if stop_file else None,
        grace_s=_seconds(told, GRACE, 60.0),
        timeout_s=_seconds(told, TIMEOUT, 600.0),
        follow=follow.lower() in TRUE if follow else bool(stop_file) or continuous,
        compat=told.get(COMPAT) or None,
        allow_stop=told.get(STOP_JOB, "").lower() in TRUE,
        job=environ.get(JOB_NAME_VARIABLE)
        or told.get(JOB_NAME_VARIABLE)
        or str(config.get("TrainingJobArn") or "").rpartition("/")[2],
    )


def _config(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds no JSON object")
    return found


def _texts(found: object) -> dict[str, str]:
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def _parameters_in(environ: Mapping[str, str]) -> dict[str, str]:
    """Our words, and `<RuleName>_<parameter>`, from the environment; the rest of it is not about rules."""
    from sm_profiler.rules.profiler_report import INTERVAL, RULES  # noqa: PLC0415 - they need numpy, reading an environment does not

    rules = {rule.name().lower() for rule in RULES}
    return {
        name: value
        for name, value in environ.items()
        if name in WORDS or name == INTERVAL or ("_" in name and name.partition("_")[0].lower() in rules)
    }


def _source(config: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[str, bool]:
    """Where the profile lies, and whether more may come: what is told, what is mounted, what the configuration names."""
    if environ.get(SOURCE_VARIABLE):
        return environ[SOURCE_VARIABLE], False
    inputs = [each.get("S3Input") or {} for each in config.get("ProcessingInputs") or [] if isinstance(each, dict)]
    ours = [each for each in inputs if str(each.get("LocalPath", "")).rstrip("/") == RULE_INPUT] or inputs[:1]
    continuous = any(each.get("S3InputMode") == "Continuous" for each in ours)
    mounted = rooted(RULE_INPUT, environ)
    if mounted.is_dir() and any(mounted.iterdir()):
        return str(mounted), continuous
    uri = next((str(each["S3Uri"]) for each in ours if each.get("S3Uri")), "")
    return uri or (str(mounted) if mounted.is_dir() else ""), continuous


def _seconds(told: Mapping[str, str], name: str, default: float) -> float:
    try:
        seconds = float(told.get(name) or default)
    except ValueError:
        raise ConfigError(f"{name} must be a number of seconds, not {told[name]!r}") from None
    if not 0 <= seconds < 1e9:  # noqa: PLR2004 - thirty years
        raise ConfigError(f"{name} must be a number of seconds, not {told[name]!r}")
    return seconds
