"""The sections that users of the managed service know, in the order of the page."""

from __future__ import annotations

from collections.abc import Mapping

from sm_profiler.report.job_metrics import Facts
from sm_profiler.report.section_loop import batch_size, bottleneck, dataloading, gpu_memory, gpu_use, step_durations
from sm_profiler.report.section_overview import framework, rule_table, summary, system_usage
from sm_profiler.report.section_parts import Object, Section


def build_sections(facts: Facts, rules: Mapping[str, Object], broken: Mapping[str, str]) -> list[Section]:
    """All sections in the order of the page."""
    return [
        summary(facts, rules), system_usage(rules), framework(rules), rule_table(rules, broken), step_durations(rules),
        gpu_use(rules), dataloading(rules), batch_size(rules), bottleneck(rules, "CPUBottleneck", "CPU bottlenecks", "cpu"),
        bottleneck(rules, "IOBottleneck", "I/O bottlenecks", "io"), gpu_memory(rules),
    ]  # fmt: skip
