"""Write the files of a report to a folder or a storage."""

from __future__ import annotations

import os
from typing import Any

import attrs
from markupsafe import escape

from sm_profiler.diagnosis.model import Report
from sm_profiler.render.notebook import render_notebook
from sm_profiler.render.page import render_html
from sm_profiler.render.terminal import terminal_summary
from sm_profiler.report.build import build_report
from sm_profiler.report.report_json import to_json
from sm_profiler.rules import write_rule_reports
from sm_profiler.source import open_source
from sm_profiler.storage import Storage, open_storage

HEIGHT = 900  # pixels


@attrs.frozen(eq=False, repr=False)
class ShownReport:
    """A report that a notebook shows as its page.

    The page is in a frame without rights: its script cannot reach the notebook, and nothing of it reaches the network.

    Attributes:
        report: the report.
        height: of the frame, in pixels.
    """

    report: Report
    height: int = HEIGHT

    def __repr__(self) -> str:
        """Return the terminal's summary, for places that show text."""
        return terminal_summary(self.report)

    def _repr_html_(self) -> str:
        """Return the page in a frame."""
        page = escape(render_html(self.report))
        style = f"width: 100%; height: {int(self.height)}px; border: 0"
        return f'<iframe title="Report" sandbox="allow-scripts" style="{style}" srcdoc="{page}"></iframe>'


def show_report(where: str | os.PathLike[str] | Any, *, height: int = HEIGHT, **options: Any) -> ShownReport:
    """Judge a job and show its report in a notebook, as the last expression of a cell.

    Args:
        where: a folder, an s3:// URI, the name of a training job, a `TrainingJob` of the notebook API, or an open source.
        height: of the frame, in pixels.
        options: of `build_report`.

    Raises:
        SourceError: the data cannot be read.
    """
    source = where if hasattr(where, "batches") else open_source(getattr(where, "profiler_s3_output_path", where))
    return ShownReport(build_report(source, **options), height)


HTML, NOTEBOOK, JSON = "profiler-report.html", "profiler-report.ipynb", "report.json"


def write_report(report: Report, where: str | os.PathLike[str] | Storage) -> list[str]:
    """Write profiler-report.html, profiler-report.ipynb, profiler-reports/<Rule>.json and report.json.

    Args:
        report: the report.
        where: a folder, an s3:// URI, or a storage.

    Returns:
        Keys of the files, relative to `where`.

    Raises:
        SourceError: a file cannot be written.
    """
    storage: Any = open_storage(where) if isinstance(where, (str, os.PathLike)) else where
    storage.write(JSON, to_json(report).encode())
    storage.write(HTML, render_html(report).encode())
    storage.write(NOTEBOOK, render_notebook(report).encode())
    return [HTML, NOTEBOOK, JSON, *write_rule_reports(report.rules, storage)]
