"""Run the rules in your own AWS account: push the rule image to ECR, start it on a training job.

from sm_profiler.deploy import deploy_image, start_rules
image = deploy_image("sm-profiler-rules", region="eu-west-1")
print(start_rules("my-training-job", image=image, role="arn:aws:iam::123456789012:role/sm-profiler-rules").report_uri)

Needs the extra `aws`; `sm-profiler deploy` and `sm-profiler rules start` are the same two calls.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sm_profiler.deploy.image import deploy_image as deploy_image
    from sm_profiler.deploy.rule_job import StartedRules as StartedRules
    from sm_profiler.deploy.rule_job import start_rules as start_rules

__all__ = ["StartedRules", "deploy_image", "start_rules"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "image" if name == "deploy_image" else "rule_job"
    return getattr(import_module(f"{__name__}.{module}"), name)
