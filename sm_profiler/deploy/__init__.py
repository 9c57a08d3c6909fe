"""Run the rules in your own AWS account: push the rule image to ECR, start it on a training job.

from sm_profiler.deploy import deploy_image, start_rules
image = deploy_image("sm-profiler-rules", region="eu-west-1")
print(start_rules("my-training-job", image=image, role="arn:aws:iam::123456789012:role/sm-profiler-rules").report_uri)

Needs the extra `aws`; `sm-profiler deploy` and `sm-profiler rules start` make the same two calls.
"""

from typing import TYPE_CHECKING

from sm_profiler._lazy import lazy_exports

__all__ = ["StartedRules", "deploy_image", "start_rules", "wait_for_end"]

if TYPE_CHECKING:
    from sm_profiler.deploy.image import deploy_image
    from sm_profiler.deploy.rule_job import StartedRules, start_rules, wait_for_end
else:  # boto3 takes a third of a second to load
    __getattr__, __dir__ = lazy_exports(
        __name__, {"image": ["deploy_image"], "rule_job": ["StartedRules", "start_rules", "wait_for_end"]}
    )
