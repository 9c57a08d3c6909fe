"""Render the HTML page: one file that loads nothing, with every text escaped."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import attrs
import jinja2
from markupsafe import Markup

from sm_profiler._version import __version__
from sm_profiler.diagnosis.model import Report
from sm_profiler.formatting import clean, shorten, unbroken
from sm_profiler.metrics.parts import COLOURS
from sm_profiler.metrics.process_names import readable_processes
from sm_profiler.render import gpu_section, ledger_view
from sm_profiler.render.blocks import Section
from sm_profiler.render.flame import graphs
from sm_profiler.render.sections import build_sections, folded
from sm_profiler.render.timeline_data import timeline
from sm_profiler.render.view import finding_view, glance, pictures, stacks_view

PAGE, LINKS = "page.html", "links.html"


@attrs.frozen
class Link:
    """A link to another page; without an address, the name of this one."""

    text: str
    address: str = ""


def render_html(report: Report) -> str:
    """Return the page of a report."""
    return render_page(
        "report.html",
        script=page_script(),
        report=report,
        title=f"{shorten(report.metrics.name, 80)} - sm-profiler",
        name=shorten(report.metrics.name, 120),
        parts=page_parts(report),
    )


def page_parts(report: Report) -> dict[str, Markup]:
    """Return the parts of the page in their order, each a fragment of HTML under the key of its section; "" if it is empty."""
    sections = _sections(report)
    content = {
        "verdict": _part(
            "verdict",
            verdict=finding_view(report.verdict.main),
            pictures=pictures(report),
            cost=report.cost,
            ending=report.metrics.ending,
            running=report.metrics.running,
            alarms=[alarm for alarm in (report.damage_alarm, report.load_alarm) if alarm],
        ),
        "glance": _part("glance", tiles=glance(report), alarm=report.profiling_alarm),
        "stacks": _part("stacks", stacks=stacks_view(report.hang)),
        "also": _part("also", also=[finding_view(finding) for finding in report.verdict.also]),
        "timeline": _part("timeline", timeline=timeline(report.metrics)),
        "code": _part("code", flames=graphs(report.metrics.samples)),
        "sections": _part("sections", sections=sections),
    }
    content |= {section.key: section_part(section) for section in sections}
    content["quality"] = _part("quality", quality=report.quality, not_judged=report.verdict.not_judged)
    renamed = readable_processes(report.metrics)
    return {key: Markup(renamed(str(html))) for key, html in content.items()}  # noqa: S704 - names without signs of HTML


def section_part(section: Section) -> Markup:
    """Return a section of the page."""
    return _part("section", section=section)


def _part(name: str, **content: Any) -> Markup:
    rendered = _environment().get_template(f"part_{name}.html").render(**content)
    return Markup(rendered.strip())  # noqa: S704 - our own template, which escapes its content


def _sections(report: Report) -> list[Section]:
    """Return the sections on traces, if there are any, and those on the profile, unless there are traces only."""
    of_traces = gpu_section.sections(report.gpu_traces)
    if of_traces and not report.rules and not report.metrics.ranks:
        return of_traces
    ledger = [ledger_view.section(report.ledger)] if report.ledger else []
    if ledger and not report.rules and not report.metrics.ranks:
        return ledger
    return [*of_traces, *ledger, *folded(build_sections(report.metrics, report.rules, report.broken, report.verdict))]


def render_page(
    template: str, *, package: str = "", script: str = "", links: Sequence[Link] = (), **content: Any
) -> str:
    """Return a page from one of the templates, with the shared style.

    Args:
        template: name of the template.
        package: another package that has it, with a style and a script of the same name.
        script: the page's script, unless the package has it.
        links: other pages, where a server shows them.
        content: what the template shows.
    """
    style, environment = page_style(), _environment()
    if package:
        name = template.removesuffix(".html")
        style += _asset(f"{name}.css", package)
        script = _asset(f"{name}.js", package)
        page = environment.from_string(_asset(template, package))
    else:
        page = environment.get_template(template)
    return page.render(
        style=Markup(style),  # noqa: S704 - our own file
        script=Markup(script),  # noqa: S704 - our own file
        policy=_policy(style, script),
        version=__version__,
        links=links,
        **content,
    )


def page_style() -> str:
    """Return the style of all pages."""
    return _asset("report.css") + _colour_rules()


def page_script() -> str:
    """Return the script of the timeline and the flame graphs."""
    return _asset("report.js")


def _colour_rules() -> str:
    """Return the style of the charts' colours: variables for both schemes, and classes that fill and stroke."""
    light = "".join(f"--{name}:{colour.light};" for name, colour in COLOURS.items())
    dark = "".join(f"--{name}:{colour.dark};" for name, colour in COLOURS.items())
    classes = "".join(
        f".f-{name},.b-{name}{{fill:var(--{name});background:var(--{name})}}.s-{name}{{stroke:var(--{name})}}\n"
        for name in COLOURS
    )
    return f":root{{{light}}}\n@media (prefers-color-scheme: dark){{:root{{{dark}}}}}\n{classes}"


def page_policy() -> str:
    """Return the content security policy of a page without script."""
    return _policy(page_style(), "")


def _policy(style: str, script: str) -> str:
    """Return a content security policy that allows exactly this style and this script, and no request."""

    def hashed(text: str) -> str:
        return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"

    return f"default-src 'none'; style-src {hashed(style)}; script-src {hashed(script)}; img-src data:; base-uri 'none'; form-action 'none'"


def json_for_script(value: Any) -> Markup:
    """Return JSON for a script element, with `<`, `>`, `&` and line separators escaped."""
    written = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        written = written.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(written)  # noqa: S704 - our own file, or escaped above


def _asset(name: str, package: str = "sm_profiler.render") -> str:
    return (files(package) / "templates" / name).read_text("utf-8")


@cache
def _environment() -> jinja2.Environment:
    return new_environment(_asset)


def new_environment(load: Callable[[str], str]) -> jinja2.Environment:
    """Return an environment that escapes everything and has the filters of the pages; `load` returns a template.

    All pages share their frame, PAGE, and the links to others, LINKS.
    """

    def shared(name: str) -> str | None:
        return _asset(name) if name in {PAGE, LINKS} else None

    loader = jinja2.ChoiceLoader([jinja2.FunctionLoader(shared), jinja2.FunctionLoader(load)])
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        finalize=lambda value: clean(value) if type(value) is str else value,
    )  # fmt: skip
    environment.filters["json_for_script"] = json_for_script
    environment.filters["shorten"] = shorten
    environment.filters["unbroken"] = unbroken
    return environment
