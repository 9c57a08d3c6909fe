"""ProfilerReport: runs all other rules of the registry, each isolated from the errors of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import attrs

from sm_profiler.errors import ConfigError
from sm_profiler.folding.engine import Fold, Following, SourceLike, Stored, error_line, loaded, merge_part, run_folds
from sm_profiler.folding.window import MINUTE_US, EvaluationWindow
from sm_profiler.printable import printable
from sm_profiler.rules import parameters as params
from sm_profiler.rules.base import BuiltinRule, Compat
from sm_profiler.rules.registry import all_rules
from sm_profiler.rules.results import RuleResult, RuleResults

IGNORED = {"opt_out_telemetry", "rule_to_invoke"}  # in the service's configurations; there is no telemetry
INTERVAL = "scan_interval_us"


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
                interval_us = params.interval(value)
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
                interval_us = params.interval(value)
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
        """Add the state of another part of the job."""
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
