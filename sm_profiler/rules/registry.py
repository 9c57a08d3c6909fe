"""The rules that a report runs: the built-in ones, and those of other packages."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from types import MemberDescriptorType
from typing import Any, ClassVar

from sm_profiler import plugins
from sm_profiler.errors import ConfigError
from sm_profiler.folding.window import EvaluationWindow
from sm_profiler.printable import logger_for
from sm_profiler.rules.base import BuiltinRule, Compat
from sm_profiler.rules.bottleneck import CPUBottleneck, IOBottleneck
from sm_profiler.rules.dataloader import Dataloader
from sm_profiler.rules.gpu_rules import BatchSize, GPUMemoryIncrease, LowGPUUtilization
from sm_profiler.rules.load_balancing import LoadBalancing
from sm_profiler.rules.max_initialization_time import MaxInitializationTime
from sm_profiler.rules.overall import OverallFrameworkMetrics, OverallSystemUsage
from sm_profiler.rules.results import RuleResult
from sm_profiler.rules.step_outlier import StepOutlier

# In the order in which ProfilerReport runs them.
RULES: tuple[type[BuiltinRule], ...] = (
    CPUBottleneck,
    IOBottleneck,
    LowGPUUtilization,
    StepOutlier,
    GPUMemoryIncrease,
    BatchSize,
    MaxInitializationTime,
    LoadBalancing,
    OverallSystemUsage,
    Dataloader,
    OverallFrameworkMetrics,
)


_NUMBERS = ("RuleTriggered", "Violations", "Datapoints")


class PluginRule(BuiltinRule):
    """A rule of another package.

    The attributes of its object are this rule's `state`, so that states of all rules are stored, sent and copied in one
    way; each call gets an object with these attributes.
    """

    kind: ClassVar[type[Any]]

    @classmethod
    def parameter_names(cls) -> set[str]:
        """Return the names of the constructor's parameters."""
        return set(inspect.signature(cls.kind).parameters)

    @classmethod
    def check_parameters(cls, values: Mapping[str, object], compat: str | None = None) -> None:
        """Compare the names of parameters with those of the constructor."""
        del compat
        known = inspect.signature(cls.kind).parameters
        takes_any = any(each.kind is each.VAR_KEYWORD for each in known.values())
        unknown = [name for name in values if name not in known]
        if unknown and not takes_any:
            offered = ", ".join(sorted(known)) or "none"
            raise ConfigError(f"{cls.name()} has no parameter {unknown[0]!r}; it has: {offered}")

    def read_parameters(self, values: Mapping[str, object]) -> dict[str, object]:
        """Check the names of parameters; the constructor reads their values."""
        self.check_parameters(values)
        return dict(values)

    def shown_parameters(self) -> dict[str, object]:
        """Return the parameters that were given."""
        return dict(self.parameters)

    def start(self) -> None:
        """Create the object.

        Raises:
            ConfigError: its constructor refuses the parameters that were given.
        """
        try:
            self.state = _attributes(self.kind(**self.parameters))
        except (TypeError, ValueError) as error:
            if not self.parameters:  # nothing that the user could change
                raise
            raise ConfigError(f"{self.name()}: {error}") from error

    def evaluate(self, window: EvaluationWindow) -> bool:
        """Pass the window on."""
        return bool(self._call("update", window))

    def absorb(self, other: PluginRule) -> None:
        """Merge the objects."""
        self._call("merge", other._object())

    def result(self) -> RuleResult:
        """Return the object's result."""
        found = self._call("result")
        triggered, violations, datapoints = (int(found.get(name, 0)) for name in _NUMBERS)
        return self._result(triggered, violations, datapoints, dict(found.get("Details") or {}))

    def _object(self) -> Any:
        made = object.__new__(self.kind)
        for name, value in self.state.items():
            object.__setattr__(made, name, value)
        return made

    def _call(self, method: str, *args: Any) -> Any:
        called = self._object()
        answer = getattr(called, method)(*args)
        self.state = _attributes(called)
        return answer


def _attributes(of: Any) -> dict[str, Any]:
    """Return the attributes of an object, those in slots included, as `attrs.define` makes them."""
    members = (vars(kind).items() for kind in type(of).__mro__)
    slots = [name for each in members for name, slot in each if isinstance(slot, MemberDescriptorType)]
    return {**getattr(of, "__dict__", {}), **{name: getattr(of, name) for name in slots if hasattr(of, name)}}


def plugin_rules(taken: frozenset[str]) -> tuple[type[BuiltinRule], ...]:
    """Return the rules of other packages.

    A name has no `_`, which ends the rule's name in the key of a parameter, `<RuleName>_<parameter>`.

    Args:
        taken: names of the built-in rules, in lower case.
    """
    rules: list[type[BuiltinRule]] = []
    for name, kind in plugins.load(plugins.RULES, taken).items():
        if isinstance(kind, type) and name.isidentifier() and "_" not in name and _has_signature(kind):
            rules.append(type(name, (PluginRule,), {"kind": kind, "__doc__": kind.__doc__}))
        else:
            logger_for("sm_profiler").warning(
                "sm-profiler: the extension %s is left out: a rule is a class of Python, and its name has letters and digits only",
                name,
            )
    return tuple(rules)


def _has_signature(kind: type) -> bool:
    try:
        inspect.signature(kind)
    except (TypeError, ValueError):  # as of a class derived from `dict`
        return False
    return True


@cache
def all_rules(compat: Compat = None) -> tuple[type[BuiltinRule], ...]:
    """Return the rules that a report runs: the built-in ones, then those of other packages, which the service had not."""
    return (*RULES, *(plugin_rules(frozenset(rule.name().lower() for rule in RULES)) if compat is None else ()))
