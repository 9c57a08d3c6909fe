"""The two ways in which a rule's evaluation ends early."""

from __future__ import annotations

from sm_profiler.errors import ProfilerError


class RuleEvaluationConditionMet(ProfilerError):  # noqa: N818 - the name that users' rules raise
    """A rule's condition is met: the rule found what it looks for.

    Attributes:
        rule_name: the rule's name.
        step: at which invocation.
        end_of_rule: whether the rule is done with it.
    """

    def __init__(self, rule_name: str, step: int, end_of_rule: bool = False) -> None:  # noqa: FBT001, FBT002 - the signature that users' rules call
        self.rule_name = rule_name
        self.step = step
        self.end_of_rule = end_of_rule
        super().__init__(f"Evaluation of the rule {rule_name} at step {step} resulted in the condition being met")

    def __reduce__(self) -> tuple[type, tuple[str, int, bool]]:
        return type(self), (self.rule_name, self.step, self.end_of_rule)


class NoMoreProfilerData(ProfilerError):  # noqa: N818 - the old API's name
    """The job is over and there is nothing beyond what has been read.

    Attributes:
        timestamp: the moment that was asked for, microseconds since the epoch.
    """

    def __init__(self, timestamp: float) -> None:
        self.timestamp = timestamp
        super().__init__(f"no profiler data beyond {timestamp}: the job is over")

    def __reduce__(self) -> tuple[type, tuple[float]]:
        return type(self), (self.timestamp,)
