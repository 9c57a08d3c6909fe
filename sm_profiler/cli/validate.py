"""`sm-profiler validate`: what a configuration will do, or what is wrong with it."""

from __future__ import annotations

import json
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sm_profiler.cli.command import BAD, DONE
from sm_profiler.errors import ConfigError

_RULES = ("ProfilerRuleConfigurations", "profilerRuleConfigurations", "profiler_rule_configurations")


class Command:
    """Explains a configuration in plain words; exit code 1 where something is wrong with it."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the file, and what it cannot know of the job."""
        parser.epilog = (
            "exit codes: 0 nothing is wrong; 1 something in it is wrong; 2 it cannot be read, or is no JSON object"
        )
        parser.add_argument(
            "config",
            metavar="CONFIG.json",
            help="a profilerconfig.json, a ProfilerConfig, a CreateTrainingJob request or a DescribeTrainingJob answer; - reads standard input",
        )
        parser.add_argument("--network-isolation", action="store_true", help="the job runs without network")
        parser.add_argument("--checkpoints", action="store_true", help="the job has a CheckpointConfig")

    def run(self, options: Namespace) -> int:
        """Explain; 0 if nothing is wrong, 1 if something is."""
        from sm_profiler.config import explain

        given = _read(options.config)
        job: dict[str, Any] = dict(given) if "ProfilerConfig" in given else {}
        if options.network_isolation:
            job["EnableNetworkIsolation"] = True
        if options.checkpoints:
            job.setdefault("CheckpointConfig", {})
        rules: list[Any] = next((given[name] for name in _RULES if isinstance(given.get(name), list)), [])
        explanation = explain(given, [rule for rule in rules if isinstance(rule, Mapping)], job=job, now=time.time())
        print(explanation)
        return BAD if explanation.wrong else DONE


def _read(name: str) -> dict[str, Any]:
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8-sig")
        given = json.loads(text)
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name} is not JSON: {error}") from None
    if not isinstance(given, dict):
        raise ConfigError(f"{name} must hold a JSON object, not {type(given).__name__}")
    return given
