"""Rules that evaluate a job's profile; the engine that feeds them; the runner of the rule container.

Example:
    from sm_profiler.rules import run_rules
    from sm_profiler.source import open_source

    run_rules(open_source("/path/to/profiler-output")).results["CPUBottleneck"]["RuleTriggered"]
"""

from typing import TYPE_CHECKING

from sm_profiler._lazy import lazy_exports

__all__ = [
    "RULES",
    "BatchSize",
    "CPUBottleneck",
    "Dataloader",
    "Fold",
    "Following",
    "GPUMemoryIncrease",
    "IOBottleneck",
    "LoadBalancing",
    "LowGPUUtilization",
    "MaxInitializationTime",
    "NoMoreProfilerData",
    "OverallFrameworkMetrics",
    "OverallSystemUsage",
    "ProfilerReport",
    "ProfilerTrial",
    "Rule",
    "RuleEvaluationConditionMet",
    "RuleResults",
    "StepOutlier",
    "Window",
    "invoke_rule",
    "run_folds",
    "run_rules",
    "windows",
    "write_rule_reports",
]

if TYPE_CHECKING:
    from sm_profiler.rules.batch_size import BatchSize
    from sm_profiler.rules.conditions import NoMoreProfilerData, RuleEvaluationConditionMet
    from sm_profiler.rules.cpu_bottleneck import CPUBottleneck
    from sm_profiler.rules.dataloader import Dataloader
    from sm_profiler.rules.engine import Fold, Following, RuleResults, run_folds, run_rules, windows, write_rule_reports
    from sm_profiler.rules.gpu_memory_increase import GPUMemoryIncrease
    from sm_profiler.rules.io_bottleneck import IOBottleneck
    from sm_profiler.rules.load_balancing import LoadBalancing
    from sm_profiler.rules.low_gpu_utilization import LowGPUUtilization
    from sm_profiler.rules.max_initialization_time import MaxInitializationTime
    from sm_profiler.rules.overall_framework_metrics import OverallFrameworkMetrics
    from sm_profiler.rules.overall_system_usage import OverallSystemUsage
    from sm_profiler.rules.profiler_report import RULES, ProfilerReport
    from sm_profiler.rules.rule import Rule, invoke_rule
    from sm_profiler.rules.step_outlier import StepOutlier
    from sm_profiler.rules.trial import ProfilerTrial
    from sm_profiler.rules.window import Window
else:  # numpy is loaded by what needs it
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "batch_size": ["BatchSize"],
            "conditions": ["NoMoreProfilerData", "RuleEvaluationConditionMet"],
            "cpu_bottleneck": ["CPUBottleneck"],
            "dataloader": ["Dataloader"],
            "engine": ["Fold", "Following", "RuleResults", "run_folds", "run_rules", "windows", "write_rule_reports"],
            "gpu_memory_increase": ["GPUMemoryIncrease"],
            "io_bottleneck": ["IOBottleneck"],
            "load_balancing": ["LoadBalancing"],
            "low_gpu_utilization": ["LowGPUUtilization"],
            "max_initialization_time": ["MaxInitializationTime"],
            "overall_framework_metrics": ["OverallFrameworkMetrics"],
            "overall_system_usage": ["OverallSystemUsage"],
            "profiler_report": ["ProfilerReport", "RULES"],
            "rule": ["Rule", "invoke_rule"],
            "step_outlier": ["StepOutlier"],
            "trial": ["ProfilerTrial"],
            "window": ["Window"],
        },
    )
