"""What the built-in rules share: parameters, the report object, and the two ways in (fold and event by event)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import attrs

from sm_profiler.errors import ConfigError
from sm_profiler.rules import parameters as params
from sm_profiler.rules.window import Window

Compat = Literal["service"] | None


@attrs.frozen
class NoParameters:
    """A rule without parameters."""


class BuiltinRule:
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

    def __init__(self, *, compat: Compat = None, **values: object) -> None:
        if compat not in {None, "service"}:
            raise ConfigError(f'compat is None or "service", not {compat!r}')
        self.service = compat == "service"
        self.parameters = params.build(self.Parameters, self.name(), self.accepted(values))
        self.triggered = 0
        self.violations = 0
        self.datapoints = 0
        self.details: dict[str, Any] = {}

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

    def merge(self, other: Any) -> None:
        """Take in what another fold of this rule saw of the same job."""
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
