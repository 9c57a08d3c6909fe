"""Rules: what the profile of a job says about it; one file a rule, the engine that feeds them, the runner of the container.

from sm_profiler.source import open_source
from sm_profiler.rules import run_rules
run_rules(open_source("/path/to/profiler-output")).results["CPUBottleneck"]["RuleTriggered"]
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sm_profiler.rules.batch_size import BatchSize as BatchSize
    from sm_profiler.rules.conditions import NoMoreProfilerData as NoMoreProfilerData
    from sm_profiler.rules.conditions import RuleEvaluationConditionMet as RuleEvaluationConditionMet
    from sm_profiler.rules.cpu_bottleneck import CPUBottleneck as CPUBottleneck
    from sm_profiler.rules.dataloader import Dataloader as Dataloader
    from sm_profiler.rules.engine import Fold as Fold
    from sm_profiler.rules.engine import Following as Following
    from sm_profiler.rules.engine import RuleResults as RuleResults
    from sm_profiler.rules.engine import run_folds as run_folds
    from sm_profiler.rules.engine import run_rules as run_rules
    from sm_profiler.rules.engine import windows as windows
    from sm_profiler.rules.engine import write_rule_reports as write_rule_reports
    from sm_profiler.rules.gpu_memory_increase import GPUMemoryIncrease as GPUMemoryIncrease
    from sm_profiler.rules.io_bottleneck import IOBottleneck as IOBottleneck
    from sm_profiler.rules.load_balancing import LoadBalancing as LoadBalancing
    from sm_profiler.rules.low_gpu_utilization import LowGPUUtilization as LowGPUUtilization
    from sm_profiler.rules.max_initialization_time import MaxInitializationTime as MaxInitializationTime
    from sm_profiler.rules.overall_framework_metrics import OverallFrameworkMetrics as OverallFrameworkMetrics
    from sm_profiler.rules.overall_system_usage import OverallSystemUsage as OverallSystemUsage
    from sm_profiler.rules.profiler_report import RULES as RULES
    from sm_profiler.rules.profiler_report import ProfilerReport as ProfilerReport
    from sm_profiler.rules.rule import Rule as Rule
    from sm_profiler.rules.rule import invoke_rule as invoke_rule
    from sm_profiler.rules.step_outlier import StepOutlier as StepOutlier
    from sm_profiler.rules.trial import ProfilerTrial as ProfilerTrial
    from sm_profiler.rules.window import Window as Window

# Loaded at first use: numpy costs more than the name of a rule should.
_WHERE = {
    "BatchSize": "batch_size",
    "CPUBottleneck": "cpu_bottleneck",
    "Dataloader": "dataloader",
    "Fold": "engine",
    "Following": "engine",
    "GPUMemoryIncrease": "gpu_memory_increase",
    "IOBottleneck": "io_bottleneck",
    "LoadBalancing": "load_balancing",
    "LowGPUUtilization": "low_gpu_utilization",
    "MaxInitializationTime": "max_initialization_time",
    "OverallFrameworkMetrics": "overall_framework_metrics",
    "OverallSystemUsage": "overall_system_usage",
    "ProfilerReport": "profiler_report",
    "RULES": "profiler_report",
    "RuleResults": "engine",
    "StepOutlier": "step_outlier",
    "Window": "window",
    "Rule": "rule",
    "RuleEvaluationConditionMet": "conditions",
    "NoMoreProfilerData": "conditions",
    "ProfilerTrial": "trial",
    "invoke_rule": "rule",
    "run_folds": "engine",
    "run_rules": "engine",
    "windows": "engine",
    "write_rule_reports": "engine",
}

__all__ = sorted(_WHERE)  # noqa: PLE0605 - the names of the table above


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
