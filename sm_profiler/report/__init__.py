"""Findings → verdict → report.json, HTML, notebook.

from sm_profiler.source import open_source
from sm_profiler.report import build_report, write_report
write_report(build_report(open_source("/path/to/profiler-output")), "report")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sm_profiler.report.build import FactFolds as FactFolds
    from sm_profiler.report.build import JobInfo as JobInfo
    from sm_profiler.report.build import assemble as assemble
    from sm_profiler.report.build import build_report as build_report
    from sm_profiler.report.classes import Class as Class
    from sm_profiler.report.model import Finding as Finding
    from sm_profiler.report.model import Report as Report
    from sm_profiler.report.model import Verdict as Verdict
    from sm_profiler.report.terminal import terminal_summary as terminal_summary
    from sm_profiler.report.write import write_report as write_report

# Loaded at first use: numpy and jinja2 cost more than a name should.
_WHERE = {
    "Class": "classes", "FactFolds": "build", "Finding": "model", "JobInfo": "build", "Report": "model", "Verdict": "model",
    "assemble": "build", "build_report": "build", "terminal_summary": "terminal", "write_report": "write",
}  # fmt: skip

__all__ = sorted(_WHERE)  # noqa: PLE0605 - the names of the table above


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
