"""Write the files of a report to a folder or a storage."""

from __future__ import annotations

import json
import os
from typing import Any

from sm_profiler.diagnosis.model import Report
from sm_profiler.render.notebook import render_notebook
from sm_profiler.render.page import render_html
from sm_profiler.rules import write_rule_reports
from sm_profiler.storage import Storage, open_storage

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


def to_json(report: Report) -> str:
    """Return report.json as text; NaN and infinities become null."""
    return json.dumps(finite(report.as_dict()), indent=1, allow_nan=False) + "\n"


def finite(value: Any) -> Any:
    """Return the same data with NaN and infinities as None, and unpaired surrogates replaced."""
    if isinstance(value, dict):
        return {finite(str(key)): finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(inner) for inner in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):  # noqa: PLR0124 - NaN differs from itself
        return None
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    return value
