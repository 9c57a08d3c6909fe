"""Rules that evaluate a job's profile, and the runner of the rule container.

Example:
    from sm_profiler.rules import run_rules
    from sm_profiler.source import open_source

    run_rules(open_source("/path/to/profiler-output")).results["CPUBottleneck"].triggered
"""

from typing import TYPE_CHECKING

from sm_profiler._lazy import lazy_exports

__all__ = [
    "RULES",
    "BatchSize",
    "CPUBottleneck",
    "Dataloader",
    "EvaluationWindow",
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
    "RuleResult",
    "RuleResults",
    "StepOutlier",
    "invoke_rule",
    "run_folds",
    "run_rules",
    "windows",
    "write_rule_reports",
]

if TYPE_CHECKING:
    from sm_profiler.folding import EvaluationWindow, Fold, Following, run_folds, windows
    from sm_profiler.rules.bottleneck import CPUBottleneck, IOBottleneck
    from sm_profiler.rules.dataloader import Dataloader
    from sm_profiler.rules.gpu_rules import BatchSize, GPUMemoryIncrease, LoadBalancing, LowGPUUtilization
    from sm_profiler.rules.overall import OverallFrameworkMetrics, OverallSystemUsage
    from sm_profiler.rules.profiler_report import RULES, ProfilerReport, run_rules
    from sm_profiler.rules.results import RuleResult, RuleResults, write_rule_reports
    from sm_profiler.rules.rule import NoMoreProfilerData, Rule, RuleEvaluationConditionMet, invoke_rule
    from sm_profiler.rules.step_rules import MaxInitializationTime, StepOutlier
    from sm_profiler.rules.trial import ProfilerTrial
else:  # numpy is loaded by what needs it
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "bottleneck": ["CPUBottleneck", "IOBottleneck"],
            "dataloader": ["Dataloader"],
            "gpu_rules": ["BatchSize", "GPUMemoryIncrease", "LoadBalancing", "LowGPUUtilization"],
            "overall": ["OverallFrameworkMetrics", "OverallSystemUsage"],
            "profiler_report": ["RULES", "ProfilerReport", "run_rules"],
            "results": ["RuleResult", "RuleResults", "write_rule_reports"],
            "rule": ["NoMoreProfilerData", "Rule", "RuleEvaluationConditionMet", "invoke_rule"],
            "step_rules": ["MaxInitializationTime", "StepOutlier"],
            "trial": ["ProfilerTrial"],
            "sm_profiler.folding": ["EvaluationWindow", "Fold", "Following", "run_folds", "windows"],
        },
    )
