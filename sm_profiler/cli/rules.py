"""`sm-profiler rules`: the rules on a finished or running job."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from sm_profiler.cli.command import DONE
from sm_profiler.container import JOB_NAME_VARIABLE, RULE_IMAGE_VARIABLE, RULE_OUTPUT, SOURCE_VARIABLE
from sm_profiler.errors import ConfigError, ProfilerError

LONGEST_VALUE = 256  # characters of a variable that CreateProcessingJob accepts


class Command:
    """`run` is what the rule container starts; `start` starts that container on a training job of SageMaker."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
        run = actions.add_parser("run", help="evaluate a rule as the environment says; what the rule image starts")
        run.add_argument("--follow", action="store_true", help="wait for more until the job is over")
        run.add_argument("--compat", choices=["service"], help="the managed service's numbers, its faults included")
        start = actions.add_parser("start", help="evaluate a training job's profile in a processing job of SageMaker")
        start.add_argument("--job", required=True, metavar="NAME", help="the training job, finished or running")
        start.add_argument("--image", metavar="URI", help="the rule image (default: SM_PROFILER_RULE_IMAGE)")
        start.add_argument(
            "--rule", default="ProfilerReport", metavar="NAME", help="the rule that decides (default: ProfilerReport)"
        )
        start.add_argument("--source", metavar="S3URI", help="file with a rule of yours; --rule names its class")
        start.add_argument("--parameters", type=Path, metavar="FILE", help="JSON of the rule's parameters")
        start.add_argument("--role", metavar="ARN", help="role of the processing job (default: the training job's)")
        start.add_argument("--instance-type", default="ml.t3.medium", metavar="TYPE")
        start.add_argument("--volume-size-in-gb", type=int, default=30, metavar="N")
        start.add_argument("--max-hours", type=float, default=24, metavar="N", help="stop after so long (default: 24)")
        start.add_argument("--region", metavar="NAME")
        start.add_argument("--dry-run", action="store_true", help="show the request, send nothing")

    def run(self, options: Namespace) -> int:
        """Do it; returns the exit code."""
        if options.action == "start":
            return start(options)
        from sm_profiler.report.container import make_folds, write_for_runner
        from sm_profiler.rules.runner import main

        words = ["--follow"] * options.follow + (["--compat", options.compat] if options.compat else [])
        return main(words, write_report=write_for_runner, make_folds=make_folds)


def start(options: Namespace) -> int:
    """Create the processing job, and say where its report will be."""
    import os
    import time

    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    from sm_profiler.source.job import describe, profiler_output

    image = options.image or os.environ.get(RULE_IMAGE_VARIABLE)
    if not image:
        raise ConfigError("no rule image: give --image, or set SM_PROFILER_RULE_IMAGE (sm-profiler deploy prints it)")
    try:
        client: Any = boto3.client("sagemaker", region_name=options.region)
    except BotoCoreError as error:
        raise ProfilerError(str(error)) from None
    job = describe(options.job, client=client)
    data = profiler_output(options.job, client=client)
    name = f"{options.job[:40].rstrip('-')}-rules-{time.strftime('%Y%m%d%H%M%S')}"
    request = processing_request(job, data, image, name, options)
    if options.dry_run:
        print(json.dumps(request, indent=2))
        return DONE
    try:
        client.create_processing_job(**request)
    except (ClientError, BotoCoreError) as error:
        raise ProfilerError(f"the processing job was refused: {' '.join(str(error).split())}") from None
    target = request["ProcessingOutputConfig"]["Outputs"][0]["S3Output"]["S3Uri"]
    print(f"started processing job {name}", file=sys.stderr)
    print(f"{target}/profiler-output/profiler-report.html")
    return DONE


def processing_request(job: dict[str, Any], data: str, image: str, name: str, options: Namespace) -> dict[str, Any]:
    """CreateProcessingJob's arguments: the rule container reads the profile from S3 itself, and follows a running job."""
    follow = job.get("TrainingJobStatus") in {"InProgress", "Stopping"}
    environment = {
        **parameters_of(options.parameters),
        "rule_to_invoke": options.rule,
        "rule_follow": str(follow).lower(),
        SOURCE_VARIABLE: data,
        JOB_NAME_VARIABLE: job["TrainingJobName"],
        **({"source_s3_uri": options.source} if options.source else {}),
    }
    long = [key for key, value in environment.items() if len(value) > LONGEST_VALUE]
    if long:
        raise ConfigError(f"{long[0]} is longer than the {LONGEST_VALUE} characters that a processing job accepts")
    target = f"{data.rpartition('/')[0]}/rule-output/{options.rule}"
    output = {"S3Uri": target, "LocalPath": RULE_OUTPUT, "S3UploadMode": "Continuous"}
    network = {"NetworkConfig": {"VpcConfig": job["VpcConfig"]}} if job.get("VpcConfig") else {}
    return {
        "ProcessingJobName": name,
        "RoleArn": options.role or job["RoleArn"],
        "AppSpecification": {"ImageUri": image},
        "Environment": environment,
        "ProcessingOutputConfig": {"Outputs": [{"OutputName": "rule", "S3Output": output}]},
        "ProcessingResources": {
            "ClusterConfig": {
                "InstanceCount": 1,
                "InstanceType": options.instance_type,
                "VolumeSizeInGB": options.volume_size_in_gb,
            }
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": int(options.max_hours * 3600)},
        **network,
    }


def parameters_of(path: Path | None) -> dict[str, str]:
    """The rule's parameters as the variables that carry them."""
    if path is None:
        return {}
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path} holds no JSON object")
    return {str(key): str(value) for key, value in found.items()}
