"""Judge a profile: one verdict, written as report.json, HTML page and notebook.

Example:
    from sm_profiler.report import build_report, write_report
    from sm_profiler.source import open_source

    write_report(build_report(open_source("/path/to/profiler-output")), "report")
"""

from typing import TYPE_CHECKING

from sm_profiler._lazy import lazy_exports

__all__ = [
    "Class",
    "Finding",
    "JobInfo",
    "MetricFolds",
    "Report",
    "Verdict",
    "assemble",
    "build_report",
    "show_report",
    "terminal_summary",
    "write_report",
]

if TYPE_CHECKING:
    from sm_profiler.diagnosis.classes import Class
    from sm_profiler.diagnosis.model import Finding, Report, Verdict
    from sm_profiler.render.terminal import terminal_summary
    from sm_profiler.report.build import JobInfo, MetricFolds, assemble, build_report
    from sm_profiler.report.write import show_report, write_report
else:  # numpy and jinja2 are loaded by what needs them
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "build": ["MetricFolds", "JobInfo", "assemble", "build_report"],
            "sm_profiler.diagnosis.classes": ["Class"],
            "sm_profiler.diagnosis.model": ["Finding", "Report", "Verdict"],
            "sm_profiler.render.terminal": ["terminal_summary"],
            "write": ["show_report", "write_report"],
        },
    )
