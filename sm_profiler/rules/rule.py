"""The old API's rule: a class of a user's, invoked step by step on a trial."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from sm_profiler.rules.actions import Actions
from sm_profiler.rules.conditions import NoMoreProfilerData, RuleEvaluationConditionMet

SCAN_INTERVAL_US = 60_000_000


class Rule:
    """Base of users' rules.

    A subclass has one of
    - `invoke_at_step(step)`, which returns whether the condition is met;
    - `invoke_for_timerange(start_us, end_us, system_events, framework_events)`, likewise, called window by window;
    - `invoke(step)`, which does everything itself and raises RuleEvaluationConditionMet.

    Attributes:
        base_trial: where the data come from (ProfilerTrial).
        report: what the rule wants to say; written to profiler-reports/<Rule>.json.
        rule_name: the class's name.
        logger: for messages; they stand in the job's log.
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
        self.logger = logging.getLogger("sm_profiler.rules")
        self._actions = Actions(action_str, self.rule_name)
        self._last_us: int | None = None
        self._start_report()

    def _start_report(self) -> None:
        self.report = {"RuleTriggered": 0, "Violations": 0, "Details": {}, "Datapoints": 0, "RuleParameters": ""}

    def set_required_tensors(self, step: int) -> None:
        """There are no tensors in a profile; kept for rules that define it."""

    def invoke_at_step(self, step: int) -> bool:
        """Evaluate at one step; by default the next window of time."""
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
        """Evaluate a window; True if the condition is met."""
        raise NotImplementedError(f"{self.rule_name} has neither invoke, invoke_at_step nor invoke_for_timerange")

    def invoke(self, step: int) -> None:
        """Evaluate; a condition that is met runs the rule's actions.

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
    raise_eval_cond: bool = False,  # noqa: FBT001, FBT002 - the old signature
) -> None:
    """Invoke a rule again and again until its data end or `end_step` comes.

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
