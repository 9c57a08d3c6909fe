"""Actions of a rule that fires, as the old API's action_str describes them."""

from __future__ import annotations

import json
import os
from typing import Any

from sm_profiler.container import JOB_NAME_VARIABLE
from sm_profiler.printable import logger_for
from sm_profiler.settings import ALLOW_STOP

log = logger_for("sm_profiler.rules")

TOPIC = "SMDebugRules"
# Protocol → attribute of a message that the filter of its subscription names, so that it reaches one address only.
PROTOCOLS = {"email": "email", "sms": "phone_num"}


class Actions:
    """The actions of one rule.

    `[{"name": "StopTraining", "training_job_prefix": "my-job"}, {"name": "Email", "endpoint": "…"}]`, or one object.
    StopTraining needs SM_PROFILER_ALLOW_STOP_TRAINING=1 in the environment (the runner sets it if the job's parameters
    have `rule_allow_stop_training`). Email and SMS go through the SNS topic SMDebugRules, which the job's role may
    create, subscribe to and publish to; an address gets messages once its owner has confirmed the subscription.
    """

    def __init__(self, text: str | None, rule_name: str) -> None:
        self._rule_name = rule_name
        self._actions = _parse(text, rule_name)

    def invoke(self) -> None:
        """Run all actions; log failures, raise nothing."""
        for action in self._actions:
            name = str(action.get("name", "")).lower()
            if name == "stoptraining":
                _stop_training(action, self._rule_name)
            elif name in PROTOCOLS:
                _send(name, str(action.get("endpoint") or ""), self._rule_name)
            else:
                log.warning("%s: action %r is not supported", self._rule_name, action.get("name"))


def _parse(text: str | None, rule_name: str) -> list[dict[str, Any]]:
    if not isinstance(text, str) or not text.strip():
        return []
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        log.warning("%s: action_str is not JSON, ignoring it: %.100r", rule_name, text)
        return []
    actions = found if isinstance(found, list) else [found]
    return [action for action in actions if isinstance(action, dict)]


def _stop_training(action: dict[str, Any], rule_name: str) -> None:
    parameters = action.get("parameters") if isinstance(action.get("parameters"), dict) else {}
    job = os.environ.get(JOB_NAME_VARIABLE) or ""
    prefix = str({**(parameters or {}), **action}.get("training_job_prefix") or job)
    if not ALLOW_STOP.read_or_default():
        log.warning("%s: StopTraining is not allowed; set rule_allow_stop_training=true to allow it", rule_name)
        return
    if not job or not job.startswith(prefix):
        log.warning("%s: not stopping %r: its name does not start with %r", rule_name, job, prefix)
        return
    try:
        from sm_profiler.storage.s3_client import create_api_client  # loads boto3, and only here

        create_api_client("sagemaker").stop_training_job(TrainingJobName=job)
    except Exception as error:  # a failing action must not end the evaluation
        log.warning("%s: cannot stop the training job %s: %s", rule_name, job, error)
    else:
        log.info("%s: asked SageMaker to stop the training job %s", rule_name, job)


def _send(protocol: str, endpoint: str, rule_name: str) -> None:
    job = os.environ.get(JOB_NAME_VARIABLE) or ""
    subject = f"SMDebugRule:{rule_name} fired"
    attribute = PROTOCOLS[protocol]
    try:
        from sm_profiler.storage.s3_client import create_api_client  # loads boto3, and only here

        sns = create_api_client("sns", region=os.environ.get("AWS_REGION") or None)
        topic = sns.create_topic(Name=TOPIC)["TopicArn"]
        _subscribe(sns, topic, protocol, endpoint)
        sns.publish(
            TopicArn=topic,
            Subject=subject[:100],  # SNS's limit
            Message=f"{subject}. Training job: {job or 'unknown'}",
            MessageAttributes={attribute: {"DataType": "String", "StringValue": endpoint}},
        )
    except Exception as error:  # a failing action must not end the evaluation
        log.warning("%s: cannot send the %s message: %s", rule_name, protocol, error)
    else:
        log.info("%s: sent the %s message to topic %s", rule_name, protocol, TOPIC)


def _subscribe(sns: Any, topic: str, protocol: str, endpoint: str) -> None:
    """Subscribe an address; one that is subscribed already stays as it is."""
    policy = json.dumps({PROTOCOLS[protocol]: [endpoint]})
    try:
        sns.subscribe(TopicArn=topic, Protocol=protocol, Endpoint=endpoint, Attributes={"FilterPolicy": policy})
    except sns.exceptions.InvalidParameterException as error:
        if "different attributes" not in str(error):
            raise
