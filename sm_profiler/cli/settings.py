"""`sm-profiler settings` and `validate`: which settings apply, and what a profiler configuration does."""

from __future__ import annotations

import json
import os
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple

from sm_profiler import settings
from sm_profiler.cli.main import BAD, DONE, read_json
from sm_profiler.errors import ProfilerError
from sm_profiler.printable import one_line, printable
from sm_profiler.settings import CONFIG, CONFIG_KEYS, PARAMETERS, RULE_IMAGE, TOP, VARIABLES, Setting

DEFAULT, ENVIRONMENT = "default", "environment"
HIDDEN = "(set)"
SETTINGS_EPILOG = """\
exit codes: 0 every value can be used; 1 one of them is wrong

examples:
  sm-profiler settings                                   what is set here
  SM_PROFILER_LOCAL_MAX=50 sm-profiler settings --json   what a job with this variable would use
"""

_RULES = ("ProfilerRuleConfigurations", "profilerRuleConfigurations", "profiler_rule_configurations")
VALIDATE_EPILOG = """\
exit codes: 0 nothing is wrong; 1 something in it is wrong; 2 it cannot be read, or is not a JSON object

example:
  aws sagemaker describe-training-job --training-job-name my-job | sm-profiler validate -
"""


class Present(NamedTuple):
    """A setting as it is now.

    Attributes:
        origin: DEFAULT, ENVIRONMENT, or the file it is from.
        problem: why the value cannot be used, or "".
    """

    setting: Setting
    value: str
    origin: str
    problem: str = ""

    def row(self) -> dict[str, str]:
        setting = self.setting
        return {
            "name": setting.name, "group": setting.group, "kind": setting.kind.name, "unit": setting.unit,
            "default": setting.shown_default, "value": self.value, "from": self.origin, "problem": self.problem,
            "description": setting.description, "read_in": f"sm_profiler.{setting.read_in}",
        }  # fmt: skip


def add_settings(parser: ArgumentParser) -> None:
    parser.epilog = SETTINGS_EPILOG
    parser.add_argument("--json", action="store_true", help="print a JSON object, with kinds, units and defaults")


def run_settings(options: Namespace) -> int:
    found = [*variables(os.environ), *configuration(os.environ)]
    if options.json:
        print(json.dumps({"settings": [each.row() for each in found]}, indent=2))
    else:
        for group, members in groupby(found, lambda each: each.setting.group):
            print(f"{group}\n")
            for each in members:
                origin = "" if each.origin == DEFAULT else f"   ({each.origin})"
                print(f"  {each.setting.name} = {printable(each.value)}{printable(origin)}")
                if each.problem:
                    print(f"      wrong: {printable(each.problem)}")
                print(f"      {each.setting.description.replace('`', '')}")
            print()
    return BAD if any(each.problem for each in found) else DONE


def variables(environment: Mapping[str, str]) -> Iterator[Present]:
    """Return the environment variables, with what the settings file has for those that are not set."""
    for setting in VARIABLES:
        if setting.is_ours:
            continue
        text, problem = setting.text(environment), ""
        if setting is CONFIG:
            from sm_profiler.config import config_from_environment  # one variable or numbered parts

            text = config_from_environment(environment) or ""
        elif not text.strip():
            yield _from_file(environment) if setting is RULE_IMAGE else Present(setting, setting.shown_default, DEFAULT)
            continue
        else:
            problem = setting.problem(environment)
        if not text:
            yield Present(setting, setting.shown_default, DEFAULT)
        else:
            yield Present(setting, HIDDEN if setting.is_secret else text, ENVIRONMENT, problem)


def _from_file(environment: Mapping[str, str]) -> Present:
    path = settings.settings_path(environment)
    try:
        found = settings.read_file(path).get(RULE_IMAGE.file_key)
    except ProfilerError as error:
        return Present(RULE_IMAGE, RULE_IMAGE.shown_default, DEFAULT, str(error))
    if not found:
        return Present(RULE_IMAGE, RULE_IMAGE.shown_default, DEFAULT)
    return Present(RULE_IMAGE, found if isinstance(found, str) else json.dumps(found), str(path))


def configuration(environment: Mapping[str, str]) -> Iterator[Present]:
    """Return the keys of the profiler configuration that applies to a training started here."""
    from sm_profiler.config import load_profile
    from sm_profiler.config.api import PARAMETER_KEYS, canonical, decode_config
    from sm_profiler.hook.settings import find_config

    given: dict[str, Any] = {}
    problems: list[str] = []
    origin = ENVIRONMENT
    try:
        text = find_config(environment)
        if text is not None:
            origin = str(text.path) if text.path else f"${CONFIG.name}"
            given, profile = decode_config(text.text), load_profile(text.text)
            problems = [*profile.problems, *(f"{key}: unknown, ignored" for key in profile.unknown)]
    except (ProfilerError, OSError, ValueError) as error:  # what a training reports, too
        problems = [f"{TOP}: {one_line(error)}"]
    parameters = given.get("ProfilingParameters")
    inner = canonical(parameters, PARAMETER_KEYS) if isinstance(parameters, Mapping) else {}
    for setting in CONFIG_KEYS:
        if setting.group not in {TOP, PARAMETERS}:
            continue  # the keys inside of a window
        names = (f"{setting.name}:", f"{setting.name}.", *((f"{TOP}:",) if setting is CONFIG_KEYS[0] else ()))
        problem = "; ".join(line for line in problems if line.startswith(names))
        value = (inner if setting.group == PARAMETERS else given).get(setting.name)
        if value is None:
            yield Present(setting, setting.shown_default, DEFAULT, problem)
        else:
            shown = (
                f"{len(inner)} keys" if value is parameters else value if isinstance(value, str) else json.dumps(value)
            )
            yield Present(setting, shown, origin, problem)


def add_validate(parser: ArgumentParser) -> None:
    parser.epilog = VALIDATE_EPILOG
    parser.add_argument(
        "config",
        metavar="CONFIG.json",
        help="a profilerconfig.json, ProfilerConfig, CreateTrainingJob request or DescribeTrainingJob response;"
        " - reads standard input",
    )
    parser.add_argument("--network-isolation", action="store_true", help="assume that the job has no network")
    parser.add_argument("--checkpoints", action="store_true", help="assume that the job has a CheckpointConfig")


def run_validate(options: Namespace) -> int:
    from sm_profiler.config import explain
    from sm_profiler.config.launched import Launched

    given = read_json(options.config)
    config: Any = given
    job: dict[str, Any] = dict(given) if given.keys() & {"ProfilerConfig", "Environment"} else {}
    launched = Launched.of(job)
    if launched.by_agent and launched.text is not None and launched.text.lstrip().startswith("{"):
        config = launched.text
    if options.network_isolation:
        job["EnableNetworkIsolation"] = True
    if options.checkpoints:
        job.setdefault("CheckpointConfig", {})
    rules: list[Any] = next((given[name] for name in _RULES if isinstance(given.get(name), list)), [])
    explanation = explain(config, [rule for rule in rules if isinstance(rule, Mapping)], job=job, now=time.time())
    print(explanation)
    return BAD if explanation.wrong else DONE
