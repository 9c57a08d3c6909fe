"""Actions of a rule that fires, as the old API's action_str describes them."""

from __future__ import annotations

import json
import os
from typing import Any

from sm_profiler.container import ALLOW_STOP_VARIABLE, JOB_NAME_VARIABLE
from sm_profiler.printable import logger_for

log = logger_for("sm_profiler.rules")


class Actions:
    """The actions of one rule.

    `[{"name": "StopTraining", "training_job_prefix": "my-job"}, {"name": "Email", "endpoint": "…"}]`, or one object.
    StopTraining needs SM_PROFILER_ALLOW_STOP_TRAINING=1 in the environment (the runner sets it if the job's parameters
    have `rule_allow_stop_training`). Email and SMS are not supported; using one logs a warning.
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
    if os.environ.get(ALLOW_STOP_VARIABLE) != "1":
        log.warning("%s: StopTraining is not allowed; set rule_allow_stop_training=true to allow it", rule_name)
        return
    if not job or not job.startswith(prefix):
        log.warning("%s: not stopping %r: its name does not start with %r", rule_name, job, prefix)
        return
    try:
        from sm_profiler.storage.api_client import create_api_client  # noqa: PLC0415 - loads boto3, and only here

        create_api_client("sagemaker").stop_training_job(TrainingJobName=job)
    except Exception as error:  # noqa: BLE001 - a failing action must not end the evaluation
        log.warning("%s: cannot stop the training job %s: %s", rule_name, job, error)
    else:
        log.info("%s: asked SageMaker to stop the training job %s", rule_name, job)
