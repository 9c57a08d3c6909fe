"""All rules of a report, the built-in ones and those of other packages, and ProfilerReport, which runs them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from types import MemberDescriptorType
from typing import Any, ClassVar

import attrs

from sm_profiler import plugins
from sm_profiler.errors import ConfigError
from sm_profiler.folding import (
    EvaluationWindow,
    Fold,
    Following,
    SourceLike,
    Stored,
    error_line,
    loaded,
    merge_part,
    run_folds,
)
from sm_profiler.formats.layout import MINUTE_US
from sm_profiler.printable import logger_for, printable
from sm_profiler.rules.base import BuiltinRule, Compat, interval
from sm_profiler.rules.bottleneck import CPUBottleneck, IOBottleneck
from sm_profiler.rules.dataloader import Dataloader
from sm_profiler.rules.gpu_rules import BatchSize, GPUMemoryIncrease, LoadBalancing, LowGPUUtilization
from sm_profiler.rules.overall import OverallFrameworkMetrics, OverallSystemUsage
from sm_profiler.rules.results import RuleResult, RuleResults
from sm_profiler.rules.rule import INTERVAL
from sm_profiler.rules.step_rules import MaxInitializationTime, StepOutlier

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

IGNORED = {"opt_out_telemetry", "rule_to_invoke"}  # in the service's configurations; there is no telemetry


class PluginRule(BuiltinRule):
    """A rule of another package.

    The attributes of its object are this rule's `state`, so that states of all rules are stored, sent and copied in one
    way; each call gets an object with these attributes.
    """

    kind: ClassVar[type[Any]]

    @classmethod
    def parameter_names(cls) -> set[str]:
        return set(inspect.signature(cls.kind).parameters)

    @classmethod
    def check_parameters(cls, values: Mapping[str, object], compat: str | None = None) -> None:
        del compat
        known = inspect.signature(cls.kind).parameters
        takes_any = any(each.kind is each.VAR_KEYWORD for each in known.values())
        unknown = [name for name in values if name not in known]
        if unknown and not takes_any:
            offered = ", ".join(sorted(known)) or "none"
            raise ConfigError(f"{cls.name()} has no parameter {unknown[0]!r}; it has: {offered}")

    def read_parameters(self, values: Mapping[str, object]) -> dict[str, object]:
        self.check_parameters(values)
        return dict(values)

    def shown_parameters(self) -> dict[str, object]:
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
        return bool(self._call("update", window))

    def absorb(self, other: PluginRule) -> None:
        self._call("merge", other._object())

    def result(self) -> RuleResult:
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


@attrs.frozen
class ReportParameters:
    """Parameters of ProfilerReport.

    Attributes:
        of_rules: rule name → parameter → value.
        scan_interval_us: length of a window.
    """

    of_rules: dict[str, dict[str, object]] = attrs.field(factory=dict)
    scan_interval_us: int = MINUTE_US

    @classmethod
    def parse(cls, values: Mapping[str, object] | None, compat: Compat = None) -> ReportParameters:
        """Parse `<RuleName>_<parameter>` keys; case in the rule's name is ignored.

        Raises:
            ConfigError: a key names no rule or no parameter, or a value is bad; one line.
        """
        of_rules: dict[str, dict[str, object]] = {}
        interval_us = MINUTE_US
        rules = all_rules(compat)
        by_name = {rule.name().lower(): rule for rule in rules}
        for key, value in (values or {}).items():
            if key in IGNORED:
                continue
            if key == INTERVAL:
                interval_us = interval(value)
                continue
            rule_name, _, parameter = key.partition("_")
            if not parameter:
                raise ConfigError(
                    f"Key ({printable(key)[:100]}) does not follow naming scheme: <rule_name>_<parameter_name>"
                )
            if rule_name.lower() not in by_name:
                raise ConfigError(
                    f"{printable(key)[:100]} is an invalid key with invalid rule name! Rules: {', '.join(r.name() for r in rules)}"
                )
            if parameter == INTERVAL:
                interval_us = interval(value)
                continue
            of_rules.setdefault(by_name[rule_name.lower()].name(), {})[parameter] = value
        parsed = cls(of_rules, interval_us)
        for rule in rules:
            rule.check_parameters(parsed.of_rules.get(rule.name(), {}), compat)
        return parsed


def of_report(rule: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of one built-in rule as those of ProfilerReport.

    Args:
        rule: the rule's exact name; the parameters of ProfilerReport are returned as they are.
        given: its parameters, with or without the rule's name.
    """
    prefix = "" if rule == ProfilerReport.name() else f"{rule}_"
    return {
        name if name.lower().startswith(prefix.lower()) or name == INTERVAL else prefix + name: value
        for name, value in given.items()
    }


class ProfilerReport(BuiltinRule):
    """Runs all other rules; its condition is met if that of any of them is.

    Attributes:
        rules: the rules by name; `rule` returns one that is stored.
        broken: rule name → one line about the error that stopped it.
        first_met: rule name → index of the first window that met its condition.
    """

    def read_parameters(self, values: Mapping[str, object]) -> ReportParameters:
        """Parse the parameters of all rules."""
        return ReportParameters.parse(values, self.compat)

    def shown_parameters(self) -> dict[str, object]:
        """Return the parameters that were given."""
        given: dict[str, dict[str, object]] = self.parameters.of_rules
        return {f"{rule}_{name}": value for rule, values in given.items() for name, value in values.items()}

    def start(self) -> None:
        """Create every rule."""
        given = self.parameters.of_rules
        self.rules: dict[str, Any] = {}
        self.broken: dict[str, str] = {}
        self.first_met: dict[str, int] = {}
        self.windows = 0
        for rule in all_rules(self.compat):
            name = rule.name()
            try:
                self.rules[name] = rule(compat=self.compat, **given.get(name, {}))
            except ConfigError:
                raise
            except Exception as error:  # of another package
                self.broken[name] = error_line(error)

    def evaluate(self, window: EvaluationWindow) -> bool:
        """Pass the window to every rule; return True if it meets the condition of one."""
        met = False
        kept = (window.system, window.events) if self.compat else None  # most rules of the service read them
        for name, rule in self.rules.items():
            if name not in self.broken:
                try:
                    if rule.update(window):
                        self.first_met.setdefault(name, self.windows)
                        met = True
                except Exception as error:  # one rule's error must not stop the others
                    self.broken[name] = error_line(error)
        del kept
        self.windows += 1
        return met

    def absorb(self, other: ProfilerReport) -> None:
        self.broken.update(other.broken)
        for name, rule in self.rules.items():
            if name not in self.broken:
                merged = partial(merge_part, name, rule, other.rules[name], self.broken, other.broken)
                is_stored = isinstance(rule, Stored) or isinstance(other.rules[name], Stored)
                self.rules[name] = Stored(merged) if is_stored else merged()

    def rule(self, name: str) -> Any:
        """Return a rule, which is in memory from then on."""
        rule = self.rules[name] = loaded(self.rules[name])
        return rule

    def load_rules(self) -> None:
        """Have all rules in memory: `broken` has the errors of those that were merged while they were loaded."""
        for name in self.rules:
            self.rule(name)

    def results(self) -> RuleResults:
        """Return the result of each rule that is not broken."""
        found: dict[str, RuleResult] = {}
        for name in self.rules:
            if name not in self.broken:
                try:
                    rule = self.rule(name)
                    if name not in self.broken:  # it may have been merged while it was loaded
                        found[name] = rule.result()
                except Exception as error:  # one rule's error must not stop the others
                    self.broken[name] = error_line(error)
        return RuleResults(found, dict(self.broken))

    def result(self) -> RuleResult:
        """Return the number of rules that fired."""
        results = self.results()
        fired = len(results.fired)
        details: dict[str, Any] = {name: result.triggered for name, result in results.results.items()}
        count = len(details)
        if results.broken:
            details["broken"] = results.broken
        return self._result(fired, fired, count, details)


def run_rules(  # all but the source are options
    source: SourceLike,
    *,
    parameters: Mapping[str, object] | None = None,
    compat: Compat = None,
    extra_folds: Iterable[Fold] = (),
    follow: bool | Following = False,
    on_window: Callable[[EvaluationWindow, RuleResults], object] | None = None,
) -> RuleResults:
    """Evaluate all rules in one pass.

    Args:
        source: the job's data.
        parameters: `{"<RuleName>_<parameter>": value}`; values may be strings.
        compat: "service" for the managed service's numbers, its faults included.
        extra_folds: more folds to feed in the same pass; one that raises gets no further windows, and is listed in
            `broken` under its class name.
        follow: wait for more data until the job is over.
        on_window: called after each window with the results so far.

    Raises:
        ConfigError: an unknown parameter or a bad value.
    """
    report = ProfilerReport(compat=compat, **dict(parameters or {}))
    extras = list(extra_folds)
    broken = run_folds(
        source,
        [report, *extras],
        follow=follow,
        on_window=None if on_window is None else lambda window: on_window(window, report.results()),
        interval_us=report.parameters.scan_interval_us,
    )
    results = report.results()
    for index, line in broken.items():
        results.broken[type(extras[index - 1]).__name__] = line
    return results
