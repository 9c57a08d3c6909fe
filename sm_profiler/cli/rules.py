"""`sm-profiler rules` and `deploy`: rules in their container, on this machine and as a processing job, and its image."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from sm_profiler._version import __version__
from sm_profiler.cli.main import DONE, read_json
from sm_profiler.errors import ConfigError
from sm_profiler.printable import say
from sm_profiler.settings import RULE_IMAGE


def add_rules(parser: ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    run = actions.add_parser(
        "run",
        help="evaluate rules as the environment asks; the rule image runs this",
        description="Evaluate rules as the environment asks; the rule image runs this.",
    )
    run.add_argument("--follow", action="store_true", help="keep evaluating until the job ends")
    run.add_argument(
        "--compat", choices=["service"], help="reproduce the managed service's numbers, known errors included"
    )
    start = actions.add_parser(
        "start",
        help="evaluate a training job's profile in a processing job of SageMaker",
        description="Evaluate a training job's profile in a processing job of SageMaker.",
    )
    start.add_argument("--job", required=True, metavar="NAME", help="the training job, finished or running")
    start.add_argument(
        "--rule", default="ProfilerReport", metavar="NAME", help="rule that decides the status (default: %(default)s)"
    )
    start.add_argument(
        "--source", metavar="FILE", help="local file or s3:// URI with a custom rule, whose class --rule names"
    )
    start.add_argument("--parameters", type=Path, metavar="FILE", help="JSON object of rule parameters")
    add_job_arguments(start, needs_role=True)
    start.add_argument("--volume-size-in-gb", type=int, default=30, metavar="N", help="default: %(default)s")
    start.add_argument(
        "--max-hours", type=float, default=24, metavar="N", help="limit on the run time (default: %(default)s)"
    )
    start.add_argument(
        "--force",
        action="store_true",
        help="start even if the job has no profile, for a running job whose profiler will be switched on",
    )
    start.add_argument("--dry-run", action="store_true", help="print the request, send nothing")


def run_rules(options: Namespace) -> int:
    if options.action == "start":
        return start(options)
    from sm_profiler.report.rule_runner import run_rules_job

    words = ["--follow"] * options.follow + (["--compat", options.compat] if options.compat else [])
    return run_rules_job(words)


def add_job_arguments(parser: Any, *, needs_role: bool) -> None:
    parser.add_argument("--image", metavar="URI", help="the rule image (default: $SM_PROFILER_RULE_IMAGE)")
    role = parser.add_mutually_exclusive_group(required=needs_role)
    role.add_argument("--role", metavar="ARN", help="role that the rule container runs under (docs/deploying.md)")
    role.add_argument(
        "--training-role",
        action="store_true",
        help="run under the training job's role, which usually can do far more than read a profile",
    )
    parser.add_argument("--instances", type=int, default=1, metavar="N", help="that share the work (default: 1)")
    parser.add_argument(
        "--processing-instance-type" if not needs_role else "--instance-type",
        dest="processing_type",
        metavar="TYPE",
        help="default: ml.t3.medium; of several: ml.m5.xlarge",
    )
    parser.add_argument("--region", metavar="NAME", help="AWS region (default: that of your AWS settings)")


def rule_image(options: Namespace) -> str:
    image = options.image or RULE_IMAGE.read()
    if not image:
        raise ConfigError("no rule image: give --image, or set SM_PROFILER_RULE_IMAGE (sm-profiler deploy prints it)")
    return str(image)


def start(options: Namespace) -> int:
    """Start the processing job and print where its report will be."""
    from sm_profiler.deploy import start_rules

    started = start_rules(
        options.job,
        image=rule_image(options),
        role=options.role,
        rule=options.rule,
        source=options.source,
        parameters=read_json(options.parameters),
        instance_type=options.processing_type,
        instances=options.instances,
        volume_size_in_gb=options.volume_size_in_gb,
        max_hours=options.max_hours,
        region=options.region,
        force=options.force,
        dry_run=options.dry_run,
    )
    if options.dry_run:
        print(json.dumps(started.request, indent=2))
    else:
        role = started.request["RoleArn"]
        say(f"started processing job {started.name} under {role}")
        print(started.report_uri)
    return DONE


def add_deploy(parser: ArgumentParser) -> None:
    parser.add_argument("--repository", required=True, metavar="NAME", help="ECR repository, created if missing")
    parser.add_argument("--tag", default=__version__, help="tag of the image (default: %(default)s)")
    parser.add_argument("--region", metavar="NAME", help="AWS region (default: that of your AWS settings)")
    parser.add_argument(
        "--context", type=Path, metavar="DIR", help="checkout of sm-profiler (default: the installation or .)"
    )
    parser.add_argument("--base-image", metavar="IMAGE", help="image to build on (default: public slim Python)")
    parser.add_argument("--python-version", metavar="X.Y", help="Python version of the base image (default: 3.12)")
    parser.add_argument("--dry-run", action="store_true", help="print every call and command, change nothing")


def run_deploy(options: Namespace) -> int:
    from sm_profiler.deploy import deploy_image

    image = deploy_image(
        options.repository,
        tag=options.tag,
        region=options.region,
        context=options.context,
        base_image=options.base_image,
        python_version=options.python_version,
        dry_run=options.dry_run,
        on_step=lambda step: print(f"+ {step}", file=sys.stderr, flush=True),
    )
    print(f"export SM_PROFILER_RULE_IMAGE={image}")
    print("ProfilerRule.custom(")
    print(f'    name="ProfilerReport", image_uri="{image}",')
    print('    instance_type="ml.t3.medium", volume_size_in_gb=30,')
    print('    rule_parameters={"rule_to_invoke": "ProfilerReport"},')
    print(")")
    return DONE
