"""`sm-profiler validate`: explain what a configuration does, or what is wrong with it."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

from sm_profiler.cli.command import BAD, DONE, read_json

_RULES = ("ProfilerRuleConfigurations", "profilerRuleConfigurations", "profiler_rule_configurations")
EPILOG = """\
exit codes: 0 nothing is wrong; 1 something in it is wrong; 2 it cannot be read, or is not a JSON object

example:
  aws sagemaker describe-training-job --training-job-name my-job | sm-profiler validate -
"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "config",
        metavar="CONFIG.json",
        help="a profilerconfig.json, ProfilerConfig, CreateTrainingJob request or DescribeTrainingJob response;"
        " - reads standard input",
    )
    parser.add_argument("--network-isolation", action="store_true", help="assume that the job has no network")
    parser.add_argument("--checkpoints", action="store_true", help="assume that the job has a CheckpointConfig")


def run(options: Namespace) -> int:
    from sm_profiler.config import explain

    given = read_json(options.config)
    job: dict[str, Any] = dict(given) if "ProfilerConfig" in given else {}
    if options.network_isolation:
        job["EnableNetworkIsolation"] = True
    if options.checkpoints:
        job.setdefault("CheckpointConfig", {})
    rules: list[Any] = next((given[name] for name in _RULES if isinstance(given.get(name), list)), [])
    explanation = explain(given, [rule for rule in rules if isinstance(rule, Mapping)], job=job, now=time.time())
    print(explanation)
    return BAD if explanation.wrong else DONE
