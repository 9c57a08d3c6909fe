"""ProfilerReport: the rule that runs all others, each isolated from the others' errors."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import attrs

from sm_profiler.errors import ConfigError, ProfilerError
from sm_profiler.rules import parameters as params
from sm_profiler.rules.batch_size import BatchSize
from sm_profiler.rules.builtin import BuiltinRule, Compat
from sm_profiler.rules.cpu_bottleneck import CPUBottleneck
from sm_profiler.rules.dataloader import Dataloader
from sm_profiler.rules.gpu_memory_increase import GPUMemoryIncrease
from sm_profiler.rules.io_bottleneck import IOBottleneck
from sm_profiler.rules.load_balancing import LoadBalancing
from sm_profiler.rules.low_gpu_utilization import LowGPUUtilization
from sm_profiler.rules.max_initialization_time import MaxInitializationTime
from sm_profiler.rules.overall_framework_metrics import OverallFrameworkMetrics
from sm_profiler.rules.overall_system_usage import OverallSystemUsage
from sm_profiler.rules.step_outlier import StepOutlier
from sm_profiler.rules.window import MINUTE_US, Window

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
IGNORED = "opt_out_telemetry"  # accepted for old configurations: there is no telemetry
INTERVAL = "scan_interval_us"


@attrs.frozen
class ReportParameters:
    """What ProfilerReport was given.

    Attributes:
        of_rules: rule name → parameter → value.
        scan_interval_us: length of a window.
    """

    of_rules: dict[str, dict[str, object]] = attrs.field(factory=dict)
    scan_interval_us: int = MINUTE_US

    @classmethod
    def parse(cls, values: Mapping[str, object] | None) -> ReportParameters:
        """Read `<RuleName>_<parameter>` keys; the rule's name without regard to case.

        Raises:
            ConfigError: a key that names no rule or no parameter, or a bad value; one line.
        """
        of_rules: dict[str, dict[str, object]] = {}
        interval_us = MINUTE_US
        by_name = {rule.name().lower(): rule for rule in RULES}
        for key, value in (values or {}).items():
            if key in {IGNORED, "rule_to_invoke"}:
                continue
            if key == INTERVAL:
                interval_us = params.interval(value)
                continue
            rule_name, _, parameter = key.partition("_")
            if not parameter:
                raise ConfigError(f"Key ({key}) does not follow naming scheme: <rule_name>_<parameter_name>")
            if rule_name.lower() not in by_name:
                raise ConfigError(
                    f"{key} is an invalid key with invalid rule name! Rules: {', '.join(r.name() for r in RULES)}"
                )
            if parameter == INTERVAL:
                interval_us = params.interval(value)
                continue
            of_rules.setdefault(by_name[rule_name.lower()].name(), {})[parameter] = value
        made = cls(of_rules, interval_us)
        for rule in RULES:
            params.build(rule.Parameters, rule.name(), rule.accepted(made.of_rules.get(rule.name(), {})))
        return made


class ProfilerReport(BuiltinRule):
    """Runs the eleven others; its condition is met if that of any is.

    Attributes:
        rules: the rules by name.
        broken: name of a rule → why it stopped.
    """

    description = "All rules, and a report of what they found."
    recommendation = "Start with the rules that fired most often."

    def read_parameters(self, values: Mapping[str, object]) -> ReportParameters:
        """Parameters of all rules."""
        return ReportParameters.parse(values)

    def shown_parameters(self) -> dict[str, object]:
        """Those that were given."""
        given: dict[str, dict[str, object]] = self.parameters.of_rules
        return {f"{rule}_{name}": value for rule, values in given.items() for name, value in values.items()}

    def start(self) -> None:
        """Set up every rule."""
        given = self.parameters.of_rules
        compat: Compat = "service" if self.service else None
        self.rules = {rule.name(): rule(compat=compat, **given.get(rule.name(), {})) for rule in RULES}
        self.broken: dict[str, str] = {}

    def update(self, window: Window) -> bool:
        """Give the window to every rule; True if the condition of one is met in it."""
        met = False
        for name, rule in self.rules.items():
            if name not in self.broken:
                try:
                    met = rule.update(window) or met
                except Exception as error:  # noqa: BLE001 - one rule's fault must not take the others along
                    self.broken[name] = reason(error)
        return met

    def absorb(self, other: ProfilerReport) -> None:
        """Take in other nodes or other minutes of the same job."""
        self.broken.update(other.broken)
        for name, rule in self.rules.items():
            if name not in self.broken:
                rule.merge(other.rules[name])

    def results(self) -> dict[str, dict[str, Any]]:
        """The report object of each rule that is not broken."""
        found = {}
        for name, rule in self.rules.items():
            if name not in self.broken:
                try:
                    found[name] = rule.result()
                except Exception as error:  # noqa: BLE001 - as above
                    self.broken[name] = reason(error)
        return found

    def finish(self) -> None:
        """Sum up."""
        results = self.results()
        self.triggered = sum(result["RuleTriggered"] > 0 for result in results.values())
        self.violations = self.triggered
        self.datapoints = len(results)
        self.details = {name: result["RuleTriggered"] for name, result in results.items()}
        if self.broken:
            self.details["broken"] = dict(self.broken)


def reason(error: BaseException) -> str:
    """One line for an error: our own ones as they are, others with their kind and place."""
    if isinstance(error, ProfilerError):
        return str(error)
    frames = inspect.getinnerframes(error.__traceback__, context=0) if error.__traceback__ else []
    place = f" ({frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno})" if frames else ""
    return " ".join(f"{type(error).__name__}: {error}{place}".split())[:500]
