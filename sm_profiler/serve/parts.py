"""Fragments of the pages as HTML, from templates of this package."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2

from sm_profiler._version import __version__
from sm_profiler.report.page import new_environment
from sm_profiler.serve.logs import Stream


def render(template: str, **content: Any) -> str:
    """Return a fragment of a page."""
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
