"""HTML of the pages: templates of this package, and the links between the pages."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from sm_profiler._version import __version__
from sm_profiler.render.page import Link, new_environment, page_script, page_style
from sm_profiler.serve.logs import Stream
from sm_profiler.serve.snapshot import Snapshot

REFRESH_S = 10  # of a page without script
JOBS, FLEET = "All jobs", "Cost and lost time"
ENDS = {"Completed": "completed", "Failed": "failed", "Stopped": "stopped"}  # status in a fleet → word
POLICY = (
    "default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; img-src data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
)


def render(template: str, **content: Any) -> str:
    return _environment().get_template(template).render(version=__version__, **content)


def log_part(streams: Sequence[Stream]) -> str:
    """Return the section with the end of a job's log."""
    return render("log.html", streams=streams)


def asset(name: str) -> str:
    """Return the text of a template, a style or a script."""
    return (files("sm_profiler.serve") / "templates" / name).read_text("utf-8")


@cache
def _environment() -> jinja2.Environment:
    return new_environment(asset)


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


def links_of(path: str, *more: Link, fleet: bool = True, here: str = "") -> Sequence[Link]:
    """Return the links of a page, relative to its own address: a proxy may show it anywhere.

    Args:
        path: the page's path, as the application has it.
        more: links of that page only.
        fleet: there is a page of the fleet.
        here: the text of the link to the page itself, which has none.
    """
    up = "../" * (path.count("/") - 1)
    places = {JOBS: up or "./"} | ({FLEET: f"{up}fleet"} if fleet else {})
    found = [Link(text, "" if text == here else address) for text, address in places.items()]
    found += more
    return found if any(link.address for link in found) else ()


def state_line(snapshot: Snapshot, status: str = "") -> str:
    """Return a job's state as text; `status` is the word of the account or scheduler for its end, the surest one."""
    if snapshot.state == "unreadable":
        return f"cannot be read, trying again: {snapshot.note}"
    if snapshot.state == "reading":
        return snapshot.note or "reading what is there"
    end = (status or ENDS.get(snapshot.status, "")) if snapshot.state == "ended" else ""
    if snapshot.note.startswith((snapshot.state, "was ", *ENDS.values())):  # such as "waiting for the first data"
        note = snapshot.note.removeprefix("was ")
        if end in {"", "ended"} or note.startswith(end):
            return note
        return end if note in ENDS.values() else f"{end}: {note}"  # a part of the job may have ended otherwise
    if snapshot.state == "running" and snapshot.report is not None and not snapshot.report.metrics.running:
        return "running, or ended without a record of it"  # nothing is new for long
    state = end or snapshot.state
    return f"{state}: {snapshot.note}" if snapshot.note else state
