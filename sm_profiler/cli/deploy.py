"""`sm-profiler deploy`: build the rule image and push it to your registry (ECR)."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from sm_profiler._version import __version__
from sm_profiler.cli.command import DONE


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--repository", required=True, metavar="NAME", help="ECR repository, created if missing")
    parser.add_argument("--tag", default=__version__, help="tag of the image (default: %(default)s)")
    parser.add_argument("--region", metavar="NAME", help="AWS region (default: that of your AWS settings)")
    parser.add_argument(
        "--context", type=Path, metavar="DIR", help="checkout of sm-profiler (default: the installation or .)"
    )
    parser.add_argument("--base-image", metavar="IMAGE", help="image to build on (default: public slim Python)")
    parser.add_argument("--python-version", metavar="X.Y", help="Python version of the base image (default: 3.12)")
    parser.add_argument("--dry-run", action="store_true", help="print every call and command, change nothing")


def run(options: Namespace) -> int:
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
