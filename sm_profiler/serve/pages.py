"""The pages as HTML: templates of this package, and the parts of the report."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from sm_profiler.report import charts
from sm_profiler.report.formatting import duration
from sm_profiler.report.page import page_script, page_style
from sm_profiler.serve.jobs import Found
from sm_profiler.serve.live import Snapshot
from sm_profiler.serve.parts import asset, render

REFRESH_S = 10  # of a page without script
POLICY = (
    "default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; img-src data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
)


def render_page(template: str, nonce: str, *, refresh: bool = False, **content: Any) -> str:
    """Return a page; `refresh` reloads it regularly if there is no script."""
    return render(
        template,
        nonce=nonce,
        refresh=REFRESH_S if refresh else 0,
        style=Markup(page_style() + asset("serve.css")),  # noqa: S704 - our own files
        script=Markup(page_script() + asset("live.js")),  # noqa: S704 - our own files
        **content,
    )


def job_row(found: Found, snapshot: Snapshot | None) -> dict[str, Any]:
    """Return a line of the list of jobs."""
    row = {"id": found.id, "name": found.name, "verdict": "", "headline": "", "mood": "open", "spark": ""}
    row["state"] = {"running": "running", "ended": "ended"}.get(found.state, "")
    finding: Any = found.saved
    if snapshot is not None:
        finding = snapshot.main or finding or snapshot.saved
        row["state"] = state_line(snapshot) if snapshot.version or found.state != "ended" else "ended; it is being read"
        row["spark"] = step_times(snapshot) + gpu_use(snapshot)
    if finding is not None:
        row |= {"verdict": finding.label, "headline": finding.headline}
        row["mood"] = "open" if finding.is_open else "healthy" if finding.kind.is_healthy else "issue"
    return row


def step_times(snapshot: Snapshot) -> Markup:
    """Draw the step time over the loop so far."""
    values = snapshot.spark
    if len(values) < 2:  # noqa: PLR2004 - a line needs two points
        return Markup("")
    label = f"Step time: {duration(values[-1])} at the end, {duration(min(values))} to {duration(max(values))}"
    return charts.line([float(index) for index in range(len(values))], list(values), label)


def gpu_use(snapshot: Snapshot) -> Markup:
    """Draw the use of the GPUs over the job so far."""
    values = snapshot.gpu
    if len(values) < 2:  # noqa: PLR2004 - a line needs two points
        return Markup("")
    label = f"GPU use: {values[-1]:.0f} % at the end, {min(values):.0f} to {max(values):.0f} %"
    return charts.line([float(index) for index in range(len(values))], list(values), label, colour="blue", most=100.0)


def state_line(snapshot: Snapshot) -> str:
    """Return a job's state as text."""
    if snapshot.state == "unreadable":
        return f"cannot be read, trying again: {snapshot.note}"
    if snapshot.state == "reading":
        return snapshot.note or "reading what is there"
    if snapshot.note.startswith(snapshot.state):  # such as "waiting for the first data"
        return snapshot.note
    return f"{snapshot.state}: {snapshot.note}" if snapshot.note else snapshot.state
