"""What the built-in rules share: parameters, the report object, and the two ways in (fold and event by event)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import attrs

from sm_profiler.errors import ConfigError
from sm_profiler.rules import parameters as params
from sm_profiler.rules.event_objects import event_columns, system_columns
from sm_profiler.rules.rule import SCAN_INTERVAL_US, Rule
from sm_profiler.rules.window import Window, in_timeline_order

if TYPE_CHECKING:
    from typing_extensions import Self

Compat = Literal["service"] | None


@attrs.frozen
class NoParameters:
    """A rule without parameters."""


class BuiltinRule(Rule):
    """A built-in rule: a fold over windows.

    `update` takes the windows of a job one after another, `result` gives the report at any time.  With
    `compat="service"` the numbers are the managed service's, its known faults included.  `merge` takes in another
    part of the same job (other nodes, or other minutes); only the default computation can be merged.

    Attributes:
        description: what the rule looks for.
        recommendation: what to do when it fires.
        Parameters: the attrs class of its parameters.
    """

    description: ClassVar[str] = ""
    recommendation: ClassVar[str] = ""
    Parameters: ClassVar[type[Any]] = NoParameters
    service_defaults: ClassVar[dict[str, object]] = {}  # defaults that are others with compat="service"

    def __init__(self, base_trial: Any = None, *, compat: Compat = None, **values: object) -> None:
        """A rule with the given parameters (strings are accepted); `base_trial` only for the old API's `invoke_rule`."""
        if compat not in {None, "service"}:
            raise ConfigError(f'compat is None or "service", not {compat!r}')
        super().__init__(base_trial)
        self.service = compat == "service"
        self.scan_interval_us = params.interval(values.pop("scan_interval_us", SCAN_INTERVAL_US))
        given = {**self.service_defaults, **values} if self.service else values
        self.parameters = self.read_parameters(given)
        self.triggered = 0
        self.violations = 0
        self.datapoints = 0
        self.details: dict[str, Any] = {}
        self.start()

    def start(self) -> None:
        """Set up what the rule keeps."""

    def read_parameters(self, values: Mapping[str, object]) -> Any:
        """The rule's parameters from what was given."""
        return params.build(self.Parameters, self.name(), self.accepted(values))

    def invoke_for_timerange(
        self, start_us: float, end_us: float, system_events: Sequence[Any], framework_events: Sequence[Any]
    ) -> bool:
        """Evaluate a window given as event objects, as the old API does; True if the condition is met."""
        system, events = system_columns(system_events), in_timeline_order(event_columns(framework_events))
        fresh = system[system.timestamp * 1e6 < end_us]
        starting = events[(events.start_us >= start_us) & (events.start_us < end_us)]
        return self.update(Window(int(start_us), int(end_us), system, events, fresh, starting))

    def _start_report(self) -> None:
        """The report is made when it is asked for."""

    @classmethod
    def name(cls) -> str:
        """The rule's name: that of its class."""
        return cls.__name__

    @classmethod
    def accepted(cls, values: Mapping[str, object]) -> dict[str, object]:
        """The parameters under the names of `Parameters`, from the names that users may give."""
        return dict(values)

    @abstractmethod
    def update(self, window: Window) -> bool:
        """Take the next window; True if the rule's condition is met in it."""

    def merge(self, other: Self) -> None:
        """Take in what another fold of this rule saw of the same job: other nodes, or other minutes.

        Raises:
            ValueError: one of the two computes as the service does, which is not mergeable.
        """
        if self.service or other.service:
            raise ValueError(f'{self.name()} with compat="service" cannot be merged')
        self.absorb(other)

    def absorb(self, other: Any) -> None:
        """The rule's own part of merging."""
        raise NotImplementedError

    def finish(self) -> None:
        """Bring triggered, violations, datapoints and details up to date; may be called again after more windows."""

    def not_evaluated(self, why: str | None) -> None:
        """Say in the details why nothing could be judged; None: it could.  The service's reports do not have this."""
        self.details.pop("not_evaluated", None)
        if why is not None and not self.service:
            self.details["not_evaluated"] = why

    def shown_parameters(self) -> dict[str, object]:
        """The parameters as the report names them, in its order."""
        return attrs.asdict(self.parameters)

    def result(self) -> dict[str, Any]:
        """The report object of the rule."""
        self.finish()
        return {
            "RuleTriggered": self.triggered,
            "Violations": self.violations,
            "Details": self.details,
            "Datapoints": self.datapoints,
            "RuleParameters": params.as_text(self.shown_parameters()),
        }

    @property
    def report(self) -> dict[str, Any]:  # type: ignore[override]
        """The report object, as the old API names it."""
        return self.result()
