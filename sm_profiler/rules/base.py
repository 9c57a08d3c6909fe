"""Base of the built-in rules: parameters, results, and both ways in (columns and event objects)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from sm_profiler.errors import ConfigError
from sm_profiler.folding.window import EvaluationWindow, in_timeline_order
from sm_profiler.formats.columns import EventColumns, SystemColumns
from sm_profiler.formats.event_objects import event_columns, system_columns
from sm_profiler.rules import parameters as params
from sm_profiler.rules.differences import Compat, Differences, differences
from sm_profiler.rules.results import Details, RuleResult
from sm_profiler.rules.rule import SCAN_INTERVAL_US, Rule

if TYPE_CHECKING:
    from typing_extensions import Self


@attrs.frozen
class NoParameters:
    """A rule without parameters."""


class BuiltinRule(Rule):
    """A built-in rule: a fold over windows.

    A subclass names its `Parameters` and implements `evaluate`, `absorb` and `result`. What the managed service computed
    differently is a named difference (`sm_profiler.rules.differences`), which a subclass asks for where it matters.

    Attributes:
        Parameters: attrs class of the rule's parameters.
        parameters: the parameters in force.
        compat: "service" or None.
    """

    Parameters: ClassVar[type[Any]] = NoParameters

    def __init__(self, base_trial: Any = None, *, compat: Compat = None, **values: object) -> None:
        """Create the rule.

        Args:
            base_trial: only for the old API's `invoke_rule`.
            compat: "service" for the managed service's numbers.
            values: the parameters; values may be strings.

        Raises:
            ConfigError: an unknown parameter or a bad value.
        """
        if compat not in {None, "service"}:
            raise ConfigError(f'compat is None or "service", not {compat!r}')
        super().__init__(base_trial)
        self.rule_name = self.name()
        self.compat = compat
        self.scan_interval_us = params.interval(values.pop("scan_interval_us", SCAN_INTERVAL_US))
        self.parameters = self.read_parameters(values)
        self.start()

    @classmethod
    def name(cls) -> str:
        """Return the rule's name."""
        return cls.__name__

    @property
    def differs(self) -> Differences:
        """Differences from the documented rules that apply."""
        return differences(self.compat)

    def rows(self, window: EvaluationWindow) -> tuple[SystemColumns, EventColumns]:
        """Return the rows of a window that count in it."""
        if self.differs.edges_twice:
            return window.system, window.events
        return window.new_system, window.new_events

    def start(self) -> None:
        """Set up the state of the fold."""

    def read_parameters(self, values: Mapping[str, object]) -> Any:
        """Build the rule's parameters."""
        return params.build(self.Parameters, self.name(), self.accepted(values), self.compat)

    @classmethod
    def check_parameters(cls, values: Mapping[str, object], compat: Compat = None) -> None:
        """Raise ConfigError if a parameter is unknown or bad."""
        params.build(cls.Parameters, cls.name(), cls.accepted(values), compat)

    @classmethod
    def parameter_names(cls) -> set[str]:
        """Return the names of the parameters that users may give."""
        return {field.name for field in attrs.fields(cls.Parameters)}

    @classmethod
    def accepted(cls, values: Mapping[str, object]) -> dict[str, object]:
        """Map the names that users may give to those of `Parameters`."""
        return dict(values)

    def shown_parameters(self) -> dict[str, object]:
        """Return the parameters as the report names them, in its order."""
        return attrs.asdict(self.parameters)

    def update(self, window: EvaluationWindow) -> bool:
        """Evaluate the next window; return True if it meets the condition."""
        if self.differs.whole_windows and not window.evaluated_by_service:
            return False
        return self.evaluate(window)

    @abstractmethod
    def evaluate(self, window: EvaluationWindow) -> bool:
        """Evaluate a window; return True if it meets the condition."""

    def merge(self, other: Self) -> None:
        """Absorb a rule that saw another part of the same job: other nodes or other minutes.

        Raises:
            ValueError: one of the two has compat="service", which cannot be merged.
        """
        if self.differs.as_it_went or other.differs.as_it_went:
            raise ValueError(f'{self.name()} with compat="service" cannot be merged')
        self.absorb(other)

    @abstractmethod
    def absorb(self, other: Any) -> None:
        """Add the state of another part of the job."""

    @abstractmethod
    def result(self) -> RuleResult:
        """Return the result for all windows so far; more windows may follow."""

    def _result(
        self, triggered: int, violations: int, datapoints: int, details: Details, not_evaluated: str | None = None
    ) -> RuleResult:
        missing = None if self.differs.silent else not_evaluated
        return RuleResult(triggered, violations, datapoints, details, self.shown_parameters(), missing)

    def invoke_for_timerange(
        self, start_us: float, end_us: float, system_events: Sequence[Any], framework_events: Sequence[Any]
    ) -> bool:
        """Evaluate a window given as event objects (the old API); return True if it meets the condition."""
        system, events = system_columns(system_events), in_timeline_order(event_columns(framework_events))
        new_system = system[system.timestamp * 1e6 < end_us]
        new_events = events[(events.start_us >= start_us) & (events.start_us < end_us)]
        return self.update(EvaluationWindow(int(start_us), int(end_us), system, events, new_system, new_events))

    def _start_report(self) -> None:
        """Skip the old API's report: it is built from the result."""

    @property
    def report(self) -> dict[str, Any]:  # type: ignore[override]
        """The report object, as the old API names it."""
        return self.result().as_dict()
