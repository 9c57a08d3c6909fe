"""The old API's rule, a user's class that is invoked step by step on a trial, and the actions of rules that fire."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from sm_profiler.container import JOB_NAME_VARIABLE
from sm_profiler.errors import ProfilerError
from sm_profiler.printable import logger_for
from sm_profiler.settings import ALLOW_STOP

log = logger_for("sm_profiler.rules")

TOPIC = "SMDebugRules"
# Protocol → attribute of a message that the filter of its subscription names, so that it reaches one address only.
PROTOCOLS = {"email": "email", "sms": "phone_num"}

INTERVAL = "scan_interval_us"  # a parameter of every rule
SCAN_INTERVAL_US = 60_000_000


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
        from sm_profiler.storage.s3 import create_api_client  # loads boto3, and only here

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
        from sm_profiler.storage.s3 import create_api_client  # loads boto3, and only here

        sns = create_api_client("sns")
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


class RuleEvaluationConditionMet(ProfilerError):  # the name that users' rules raise
    """A rule's condition is met.

    Attributes:
        rule_name: the rule's name.
        step: index of the invocation.
        end_of_rule: True to end the evaluation.
    """

    def __init__(
        self, rule_name: str, step: int, end_of_rule: bool = False
    ) -> None:  # the signature that users' rules call
        self.rule_name = rule_name
        self.step = step
        self.end_of_rule = end_of_rule
        super().__init__(f"Evaluation of the rule {rule_name} at step {step} resulted in the condition being met")

    def __reduce__(self) -> tuple[type, tuple[str, int, bool]]:
        return type(self), (self.rule_name, self.step, self.end_of_rule)


class NoMoreProfilerData(ProfilerError):  # the old API's name
    """The job is over and has no data at or after a time.

    Attributes:
        timestamp: the requested time, microseconds since the epoch.
    """

    def __init__(self, timestamp: float) -> None:
        self.timestamp = timestamp
        super().__init__(f"no profiler data beyond {timestamp}: the job is over")

    def __reduce__(self) -> tuple[type, tuple[float]]:
        return type(self), (self.timestamp,)


class Rule:
    """Base of users' rules.

    A subclass has one of
    - `invoke_at_step(step)`, which returns True if the condition is met;
    - `invoke_for_timerange(start_us, end_us, system_events, framework_events)`, likewise, called window by window;
    - `invoke(step)`, which does everything itself and raises RuleEvaluationConditionMet.

    Attributes:
        base_trial: the job's data (ProfilerTrial).
        report: the rule's report object; written to profiler-reports/<Rule>.json.
        rule_name: the class's name.
        logger: writes to the job's log.
        scan_interval_us: length of a window.
    """

    scan_interval_us: int = SCAN_INTERVAL_US
    report: dict[str, Any]

    def __init__(
        self, base_trial: Any = None, action_str: str | None = None, other_trials: Sequence[Any] | None = None
    ) -> None:
        self.base_trial = base_trial
        self.other_trials = other_trials
        self.trials = [base_trial, *(other_trials or ())]
        self.rule_name = type(self).__name__
        self.logger = logger_for("sm_profiler.rules")
        self._actions = Actions(action_str, self.rule_name)
        self._last_us: int | None = None
        self._start_report()

    def _start_report(self) -> None:
        self.report = {"RuleTriggered": 0, "Violations": 0, "Details": {}, "Datapoints": 0, "RuleParameters": ""}

    def set_required_tensors(self, step: int) -> None:
        """Do nothing: a profile has no tensors. Kept for rules that call it."""

    def invoke_at_step(self, step: int) -> bool:
        """Evaluate one step: by default the next window of time."""
        del step
        interval_us = int(self.scan_interval_us)
        start_us = int(self.base_trial.first_timestamp) if self._last_us is None else self._last_us
        end_us = start_us + interval_us
        self.base_trial.wait_for_data(end_us, start_us)
        system = self.base_trial.get_system_metrics(start_us, end_us)
        framework = self.base_trial.get_framework_metrics(start_us, end_us)
        met = self.invoke_for_timerange(start_us, end_us, system, framework)
        self._last_us = end_us
        return met

    def invoke_for_timerange(
        self, start_us: float, end_us: float, system_events: Sequence[Any], framework_events: Sequence[Any]
    ) -> bool:
        """Evaluate a window; return True if the condition is met."""
        raise NotImplementedError(f"{self.rule_name} has neither invoke, invoke_at_step nor invoke_for_timerange")

    def invoke(self, step: int) -> None:
        """Evaluate one step, and run the rule's actions if the condition is met.

        Raises:
            RuleEvaluationConditionMet: the condition is met.
            NoMoreProfilerData: the job is over.
        """
        if self.invoke_at_step(step):
            self._actions.invoke()
            raise RuleEvaluationConditionMet(self.rule_name, step)


def invoke_rule(
    rule_obj: Rule,
    start_step: int | None = 0,
    end_step: int | None = None,
    raise_eval_cond: bool = False,  # the old signature
) -> None:
    """Invoke a rule repeatedly until its data end or `end_step` is reached.

    Raises:
        RuleEvaluationConditionMet: the condition is met and `raise_eval_cond` is set.
    """
    step = start_step or 0
    while end_step is None or step < end_step:
        try:
            rule_obj.invoke(step)
        except RuleEvaluationConditionMet as met:
            if raise_eval_cond:
                raise
            if met.end_of_rule:
                break
        except NoMoreProfilerData:
            break
        step += 1
