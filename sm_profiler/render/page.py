"""Render the HTML page: one file that loads nothing, with every text escaped."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import attrs
import jinja2
import numpy as np
from markupsafe import Markup

from sm_profiler._version import __version__
from sm_profiler.diagnosis.model import Report
from sm_profiler.formats.columns import Floats
from sm_profiler.formatting import clean, first_sentences, shorten, unbroken
from sm_profiler.metrics.job_metrics import JobMetrics, Rank
from sm_profiler.metrics.step_fold import TRAIN
from sm_profiler.metrics.system_fold import Buckets
from sm_profiler.render import gpu_section
from sm_profiler.render.blocks import Section
from sm_profiler.render.charts import COLOURS, LINE_COLOURS
from sm_profiler.render.flame import graphs
from sm_profiler.render.sections import build_sections, folded
from sm_profiler.render.view import finding_view, glance, heat_section, ledger_section, pictures, stacks_view
from sm_profiler.render.words import loop_alarm, other_findings, readable_processes

PAGE, LINKS = "page.html", "links.html"

MAX_SHOWN = 1e15  # keeps digits after rounding; larger values are damage
POINTS = 1000  # per series; a screen has hardly more columns
MAX_STRETCHES = 200  # of evaluation; more would merge into one band, and a selection would mislead
MAX_RANK_LINES = 3  # more ranks than this share a line, shown with the first rank's
LANES = (
    ("gpu", "GPU use", "%", (("gpu", "GPU use", "blue"),)),
    ("gpu_memory", "GPU memory", "%", (("gpu_memory", "GPU memory", "sky"),)),
    ("cpu", "CPU use", "%", (("cpu", "CPU use", "teal"), ("hottest_core", "busiest core", "amber"), ("io_wait", "I/O wait", "rose"))),
    ("memory", "Memory", "%", (("memory", "memory used", "violet"),)),
    ("network", "Network and disk", "B/s", (("received", "received", "blue"), ("sent", "sent", "sky"), ("disk_read", "disk read", "amber"), ("disk_write", "disk write", "rose"))),
)  # fmt: skip


@attrs.frozen
class Link:
    """A link to another page; without an address, the name of this one."""

    text: str
    address: str = ""


def render_html(report: Report) -> str:
    return render_page(
        "report.html",
        script=page_script(),
        report=report,
        title=f"{shorten(report.metrics.name, 80)} - sm-profiler",
        name=shorten(report.metrics.name, 120),
        owner=_owner(report.metrics.identity),
        parts=page_parts(report),
    )


def _owner(identity: Mapping[str, str]) -> str:
    """Return whose job it is, as the scheduler or the job's variables name it; "" if nothing is known."""
    return " · ".join(f"{key} {shorten(identity[key], 60)}" for key in ("user", "account", "job") if identity.get(key))


def page_parts(report: Report) -> dict[str, Markup]:
    """Return the parts of the page in their order, each a fragment of HTML under the key of its section; "" if it is empty."""
    sections, heat = _sections(report), heat_section(report.metrics.system.use, report.metrics.start)
    content = {
        "verdict": _part(
            "verdict",
            verdict=finding_view(report.verdict.main),
            pictures=pictures(report),
            cost=report.cost,
            ending=report.metrics.ending,
            running=report.metrics.running,
            alarms=list(
                filter(
                    None,
                    (
                        report.damage_alarm,
                        report.left_out_alarm,
                        report.switched_off_alarm,
                        report.load_alarm,
                        report.metrics.trainings,
                        loop_alarm(report),
                    ),
                )
            ),
        ),
        "glance": _part("glance", tiles=glance(report), alarm=report.profiling_alarm),
        "stacks": _part("stacks", stacks=stacks_view(report.hang)),
        "also": _part("also", also=[finding_view(finding) for finding in other_findings(report)]),
        "timeline": _part("timeline", timeline=timeline(report.metrics)),
        "heat": section_part(heat) if heat else Markup(),
        "code": _part("code", flames=graphs(report.metrics.samples_as_timed, report.metrics.inside_compiled)),
        "sections": _part("sections", sections=sections),
    }
    content |= {section.key: section_part(section) for section in sections}
    content["quality"] = _part("quality", quality=report.quality, not_judged=report.verdict.not_judged)
    renamed = readable_processes(report.metrics)
    return {key: Markup(renamed(str(html))) for key, html in content.items()}  # noqa: S704 - names without signs of HTML


def section_part(section: Section) -> Markup:
    return _part("section", section=section)


def _part(name: str, **content: Any) -> Markup:
    rendered = _environment().get_template(f"part_{name}.html").render(**content)
    return Markup(rendered.strip())  # noqa: S704 - our own template, which escapes its content


def _sections(report: Report) -> list[Section]:
    """Return the sections on traces, if there are any, and those on the profile, unless there are traces only."""
    ledger = [ledger_section(report.ledger, report.left_out_alarm)] if report.ledger else []
    if report.ledger and not report.rules and not report.metrics.ranks:
        return [*ledger, *gpu_section.sections(report.gpu_traces, of_windows=False)]
    of_traces = gpu_section.sections(report.gpu_traces)
    sections = build_sections(report.metrics, report.rules, report.broken, report.verdict, report.ledger)
    return [*of_traces, *ledger, *folded(sections)]


def render_page(
    template: str, *, package: str = "", script: str = "", links: Sequence[Link] = (), **content: Any
) -> str:
    """Return a page from one of the templates, with the shared style.

    Args:
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
    environment.filters["sentences"] = first_sentences
    environment.filters["unbroken"] = unbroken
    return environment


def timeline(metrics: JobMetrics) -> dict[str, Any]:
    """Return the lanes: x in seconds since the job's start, y as low, mean and high of the data behind each point."""
    if metrics.duration <= 0:
        return {}
    lanes = []
    steps = _step_lane(metrics)
    if steps:
        lanes.append(steps)
    for key, title, unit, members in LANES:
        series = [
            line for metric, name, colour in members if (line := _metric(metrics, metric, name, colour)) is not None
        ]
        if series:
            lanes.append(
                {"id": key, "title": title, "unit": unit, "top": 100 if unit == "%" else None, "series": series}
            )
    loop = metrics.loop
    stretches = _stretches(metrics.ranks[0], metrics.start) if metrics.ranks else []
    return {
        "start": round(metrics.start, 3),
        "length": round(metrics.duration, 3),
        "loop": [round(edge - metrics.start, 3) for edge in loop] if loop else None,
        "evaluation": stretches if len(stretches) <= MAX_STRETCHES else [],
        "stretches_left_out": len(stretches) if len(stretches) > MAX_STRETCHES else 0,
        "lanes": lanes,
    }


def _step_lane(metrics: JobMetrics) -> dict[str, Any] | None:
    ranks = [rank for rank in metrics.ranks if len(rank.iterations)]
    if not ranks:
        return None
    series = []
    for number, rank in enumerate(ranks if len(ranks) <= MAX_RANK_LINES else ranks[:1]):
        colour = LINE_COLOURS[number]
        series.append(
            thin(
                rank.iterations.start - metrics.start,
                rank.iterations.length * 1e3,
                f"step time, {shorten(rank.name, 40)}",
                colour,
            )
        )
    if len(ranks) > MAX_RANK_LINES:
        start = np.concatenate([rank.iterations.start for rank in ranks])
        length = np.concatenate([rank.iterations.length for rank in ranks])
        order = np.argsort(start, kind="stable")
        series.append(thin(start[order] - metrics.start, length[order] * 1e3, f"all {len(ranks)} ranks", "grey"))
    return {"id": "steps", "title": "Step time", "unit": "ms", "top": None, "series": series}


def thin(x: Floats, y: Floats, name: str, colour: str) -> dict[str, Any]:
    """Reduce a series to at most POINTS points with the smallest, mean and largest value of the data behind each."""
    edges = np.unique(np.linspace(0, len(x), min(POINTS, len(x)) + 1).astype(int))[:-1]
    counts = np.diff(np.append(edges, len(x)))
    return _series(
        name, colour, np.add.reduceat(x, edges) / counts, np.minimum.reduceat(y, edges), np.add.reduceat(y, edges) / counts,
        np.maximum.reduceat(y, edges),
    )  # fmt: skip


def _series(
    name: str, colour: str, x: Floats, low: Floats, mean: Floats, high: Floats
) -> dict[str, Any]:  # one argument a part, all but the first are options
    def rounded(values: Floats, digits: int) -> list[float | int]:
        return [
            int(value) if value == int(value) else value
            for value in np.round(np.nan_to_num(values.astype(float)).clip(-MAX_SHOWN, MAX_SHOWN), digits).tolist()
        ]

    return {
        "name": name,
        "colour": colour,
        "x": rounded(x, 2),
        "low": rounded(low, 2),
        "mean": rounded(mean, 2),
        "high": rounded(high, 2),
    }


def _metric(metrics: JobMetrics, metric: str, name: str, colour: str) -> dict[str, Any] | None:
    """Return one metric over all nodes and devices: their mean, and the extremes of any of them."""
    whole = Buckets()
    found = metrics.system.of(metric)
    for data in found.values():
        whole.merge(data)
    rows = whole.count > 0
    if not rows.any() or (
        metric in ("received", "sent", "disk_read", "disk_write") and float(whole.high[rows].max()) <= 0
    ):
        return None
    label = name if len(found) == 1 else f"{name}, {len(found)} {'GPUs' if metric.startswith('gpu') else 'nodes'}"
    return _series(
        label, colour, whole.seconds[rows] - metrics.start, whole.low[rows], whole.mean[rows], whole.high[rows]
    )


def _stretches(rank: Rank, start: float) -> list[list[float]]:
    """Return the spans of evaluation in seconds since the job's start."""
    if rank.judged is not None:
        return []
    evaluation = rank.steps.mode != TRAIN
    edges = np.flatnonzero(np.diff(np.concatenate([[0], evaluation.astype(np.int8), [0]])))
    spans = [
        [float(rank.steps.start[a] / 1e6 - start), float(rank.steps.end[b - 1] / 1e6 - start)]
        for a, b in zip(edges[0::2], edges[1::2], strict=True)
    ]
    return [[round(a, 2), round(b, 2)] for a, b in spans]
