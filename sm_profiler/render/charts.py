"""Draw the report's charts as SVG; colours are class names of the page's style."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import attrs
import numpy as np
from markupsafe import Markup, escape

from sm_profiler.formatting import clean, duration, shorten

SHARE_COLOURS = ("blue", "sky", "teal", "amber", "violet", "rose", "grey")  # neighbours in a ring
LINE_COLOURS = ("blue", "amber", "teal", "rose", "sky", "violet")  # lines that cross
MAX_STRIP_BARS = 240  # up to here single steps can be distinguished
WIDTH, HEIGHT = 520.0, 210.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 10.0, 12.0, 30.0
TIMES = ((1.0, "ms", 1e-3), (120.0, "s", 1.0), (7200.0, "min", 60.0))  # an axis has one unit
LAST_TICK = 0.97  # of the width; a label in the middle of a later tick would be cut off


def element(tag: str, *children: Markup | str, **attributes: object) -> Markup:
    """Return an element; `class_` becomes `class`, other underscores become hyphens, and None omits an attribute."""
    # plain strings: those of Markup.format take a tenth of a report's time
    written = "".join([
        f' {_name(key)}="{escape(_value(value))}"' for key, value in attributes.items() if value is not None
    ])  # fmt: skip
    inner = "".join([child if isinstance(child, Markup) else escape(clean(child)) for child in children])
    return Markup(f"<{tag}{written}>{inner}</{tag}>")  # noqa: S704 - our own file, or escaped above


def drawing(
    width: float, height: float, title: str, *children: Markup, kind: str = "chart", keep: bool = True
) -> Markup:
    """Return a whole picture; screen readers read its title."""
    return element(
        "svg", element("title", title), *children,
        viewBox=f"0 0 {_value(width)} {_value(height)}", role="img", class_=kind,
        aria_label=title, preserveAspectRatio=None if keep else "none",
    )  # fmt: skip


def text(x: float, y: float, content: str, *, kind: str = "", anchor: str | None = None) -> Markup:
    """Return a line of text; anchor: start, middle or end."""
    return element("text", content, x=x, y=y, class_=kind or None, text_anchor=anchor)


@cache
def _name(key: str) -> str:
    if key in ("viewBox", "preserveAspectRatio"):
        return key
    return key.rstrip("_").replace("_", "-")


def _value(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else clean(str(value))


@attrs.frozen
class Colour:
    """A colour of charts: on a light page, on a dark one, and as an ANSI code of the terminal."""

    light: str
    dark: str
    ansi: str


COLOURS = {
    "amber": Colour("#e08a1e", "#efa648", "33"),
    "blue": Colour("#2f6db5", "#5e9be0", "34"),
    "sky": Colour("#7aa7d9", "#9dc2ec", "94"),
    "teal": Colour("#2a9187", "#4fb8ac", "36"),
    "grey": Colour("#9aa2ab", "#7b848f", "90"),
    "violet": Colour("#8a6bb8", "#ab8fd6", "35"),
    "moss": Colour("#7d9a3c", "#a5c162", "32"),
    "rose": Colour("#c9506b", "#e57b92", "31"),
    "brick": Colour("#8f4a35", "#c97e66", "91"),
    "olive": Colour("#6b6b2f", "#b3b36b", "92"),
    "plum": Colour("#7a3f6d", "#bd84b0", "95"),
    "mint": Colour("#4f9d6d", "#86cfa2", "32"),
    "sand": Colour("#b59a5b", "#d6c08c", "93"),
    "steel": Colour("#546e8a", "#93acc7", "96"),
    "slate": Colour("#6d5f7a", "#ab9cba", "35"),
    "bronze": Colour("#8a6a2c", "#c4a25f", "33"),
    "pine": Colour("#2f6b57", "#6fae98", "36"),
    "navy": Colour("#27406b", "#8099c9", "34"),
    "stone": Colour("#77716a", "#a39d95", "90"),
    "pale": Colour("#e6e4df", "#343a42", "37"),
}


@attrs.frozen
class ChartPart:
    """A named share of a whole; `colour` is a key of COLOURS."""

    name: str
    value: float
    colour: str
    note: str = ""


def bar(parts: Sequence[ChartPart], title: str, *, height: float = 34.0) -> Markup:
    """Draw a horizontal bar of parts; the legend is part of the page."""
    whole = sum(part.value for part in parts) or 1.0
    x, drawn = 0.0, []
    for part in parts:
        width = 1000 * part.value / whole
        if width > 0:
            label = f"{part.name}: {_percent(part.value / whole)}" + (f" ({part.note})" if part.note else "")
            drawn.append(
                element(
                    "rect",
                    element("title", label),
                    x=x,
                    y=0,
                    width=max(width - 2, 0.8),
                    height=height,
                    class_=f"f-{part.colour}",
                )
            )
        x += width
    return drawing(1000, height, title, *drawn, kind="bar", keep=False)


def donut(parts: Sequence[ChartPart], title: str) -> Markup:
    """Draw shares as a ring of arcs."""
    whole = sum(part.value for part in parts if part.value > 0)
    radius, turned, drawn = 40.0, 0.0, []
    around = 2 * math.pi * radius
    for part in parts:
        share = max(part.value, 0.0) / whole if whole > 0 else 0.0
        if share <= 0:
            continue
        length = max(share * around - 1.2, 0.4) if share < 1 else around
        drawn.append(
            element(
                "circle", element("title", f"{shorten(part.name)}: {_percent(share)}"), cx=60, cy=60, r=radius, fill="none",
                stroke_width=22, class_=f"s-{part.colour}", stroke_dasharray=f"{length:.2f} {around - length:.2f}",
                stroke_dashoffset=f"{-turned * around:.2f}", transform="rotate(-90 60 60)",
            )
        )  # fmt: skip
        turned += share
    return drawing(120, 120, title, *drawn, kind="donut")


def histogram(
    counts: Sequence[float], edges: Sequence[float], title: str, axis: str, *, colour: str = "blue"
) -> Markup:
    """Draw a histogram; counts have a square-root scale, so that single outliers are visible."""
    counts = [max(float(count), 0.0) for count in counts]
    most = max(counts, default=0.0)
    if most <= 0 or len(edges) != len(counts) + 1 or edges[-1] <= edges[0]:
        return Markup("")
    plot = HEIGHT - TOP - BOTTOM
    scale = (WIDTH - LEFT - RIGHT) / (edges[-1] - edges[0])
    drawn = []
    for count, low, high in zip(counts, edges, edges[1:], strict=False):
        if count:
            tall = plot * math.sqrt(count / most)
            drawn.append(
                element(
                    "rect", element("title", f"{count:g} between {low:.4g} and {high:.4g}"), class_=f"f-{colour}",
                    x=LEFT + (low - edges[0]) * scale, y=TOP + plot - tall, width=max((high - low) * scale - 0.6, 0.8), height=max(tall, 1.0),
                )
            )  # fmt: skip
    marks = [(tick, TOP + plot * (1 - math.sqrt(tick / most))) for tick in _counts_to_mark(most)]
    return drawing(WIDTH, HEIGHT, title, *_y_axis(marks), *drawn, *_x_axis(edges[0], edges[-1], axis))


def workload(series: Sequence[tuple[str, Sequence[float]]], title: str) -> Markup:
    """Draw histograms of GPU use as outlines over each other; bins are two percent wide."""
    most = max((max(counts, default=0.0) for _, counts in series), default=0.0)
    if most <= 0:
        return Markup("")
    plot, step = HEIGHT - TOP - BOTTOM, (WIDTH - LEFT - RIGHT) / 50
    drawn = []
    for number, (name, counts) in enumerate(series):
        points = [f"M{LEFT:.1f} {TOP + plot:.1f}"]
        for index, count in enumerate(counts):
            y = TOP + plot * (1 - math.sqrt(max(count, 0.0) / most))
            points.append(f"L{LEFT + index * step:.1f} {y:.1f}L{LEFT + (index + 1) * step:.1f} {y:.1f}")
        points.append(f"L{LEFT + len(counts) * step:.1f} {TOP + plot:.1f}")
        drawn.append(
            element(
                "path",
                element("title", name),
                d="".join(points),
                class_=f"line s-{LINE_COLOURS[number % len(LINE_COLOURS)]}",
                fill="none",
                data_series=name,
            )
        )
    marks = [(tick, TOP + plot * (1 - math.sqrt(tick / most))) for tick in _counts_to_mark(most)]
    return drawing(WIDTH, HEIGHT, title, *_y_axis(marks), *drawn, *_x_axis(0, 100, "GPU use, percent"))


@attrs.frozen
class Box:
    """Quartiles and whiskers of one series, percent."""

    name: str
    p25: float
    p50: float
    p75: float
    lower: float
    upper: float


def boxes(rows: Sequence[Box], title: str) -> Markup:
    """Draw horizontal box plots, one a row."""
    tall, left = 30.0, 120.0
    height = TOP + tall * len(rows) + BOTTOM
    scale = (WIDTH - left - RIGHT) / 100

    def at(value: float) -> float:
        return left + scale * min(max(value, 0.0), 100.0)

    drawn = []
    for number, row in enumerate(rows):
        middle = TOP + tall * (number + 0.5)
        label = f"{row.name}: median {row.p50:.1f} %, half of all samples between {row.p25:.1f} and {row.p75:.1f} %"
        drawn += [
            text(left - 8, middle + 4, shorten(row.name, 18), anchor="end"),
            element("line", x1=at(row.lower), x2=at(row.upper), y1=middle, y2=middle, class_="whisker"),
            element(
                "rect", element("title", label), x=at(row.p25), y=middle - 8, width=max(at(row.p75) - at(row.p25), 1.5), height=16, rx=2, class_="f-box",
            ),
            element("line", x1=at(row.p50), x2=at(row.p50), y1=middle - 8, y2=middle + 8, class_="median"),
        ]  # fmt: skip
    return drawing(WIDTH, height, title, *_x_axis(0, 100, "percent", left=left, height=height), *drawn)


def _y_axis(marks: Sequence[tuple[float, float]]) -> list[Markup]:
    drawn = []
    for value, y in marks:
        drawn += [
            element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"),
            text(LEFT - 6, y + 4, f"{value:g}", anchor="end"),
        ]
    return drawn


def _x_axis(low: float, high: float, name: str, *, left: float = LEFT, height: float = HEIGHT) -> list[Markup]:
    base = height - BOTTOM
    drawn = [element("line", x1=left, x2=WIDTH - RIGHT, y1=base, y2=base, class_="axis")]
    for value in ticks(low, high, 5):
        x = left + (WIDTH - RIGHT - left) * (value - low) / (high - low)
        drawn.append(text(x, base + 14, f"{value:g}", anchor="middle"))
    drawn.append(text(WIDTH - RIGHT, base + 27, name, anchor="end", kind="name"))
    return drawn


def ticks(low: float, high: float, about: int) -> list[float]:
    """Return about that many round numbers between two bounds."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return []
    rough = (high - low) / about
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 12) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _counts_to_mark(most: float) -> list[float]:
    return [float(f"{most * share:.1g}") for share in (0.06, 0.3, 0.95) if most * share >= 1] or [most]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def step_strip(lengths: Sequence[float], long: Sequence[bool], title: str) -> Markup:
    """Draw step times in order with long ones marked; if steps share a bar, it shows the longest."""
    values, marks = np.asarray(lengths, float), np.asarray(long, bool)
    if not len(values):
        return Markup("")
    edges = np.unique(np.linspace(0, len(values), min(MAX_STRIP_BARS, len(values)) + 1).astype(int))
    tops = np.maximum.reduceat(values, edges[:-1])
    marked = np.logical_or.reduceat(marks, edges[:-1])
    height, most = 90.0, float(tops.max()) or 1.0
    wide = 1000 / len(tops)
    drawn = [
        element(
            "rect", element("title", f"steps {first} to {last - 1}: longest {duration(float(top))}"), x=number * wide, width=max(wide - 0.8, 0.6),
            y=height - height * top / most, height=max(height * float(top) / most, 0.5), class_="f-rose" if mark else "f-blue",
        )
        for number, (top, mark, first, last) in enumerate(zip(tops, marked, edges[:-1], edges[1:], strict=True))
    ]  # fmt: skip
    return drawing(1000, height, title, *drawn, kind="strip", keep=False)


def line(
    seconds: Sequence[float], values: Sequence[float], title: str, *, colour: str = "violet", most: float | None = None
) -> Markup:
    """Draw one series over time, from zero up to `most`, or else to its largest value."""
    if len(seconds) <= 1:
        return Markup("")
    most = most or max(values) or 1.0
    span = (seconds[-1] - seconds[0]) or 1.0
    points = [(1000 * (x - seconds[0]) / span, 90 - 86 * y / most) for x, y in zip(seconds, values, strict=True)]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    area = f"{path}L1000 90L0 90Z"
    return drawing(
        1000, 90, title, element("path", d=area, class_=f"f-{colour}", opacity="0.25"),
        element("path", d=path, class_=f"line s-{colour}", fill="none", vector_effect="non-scaling-stroke"), kind="strip", keep=False,
    )  # fmt: skip


@attrs.frozen
class Strip:
    """A lane of a timeline: for each of its kinds colour, label, and the percentage that it takes of each column."""

    name: str
    kinds: Sequence[tuple[str, str, Sequence[int]]]


def strips(lanes: Sequence[Strip], seconds: float, title: str) -> Markup:
    """Draw lanes below each other over the same time; kinds are stacked from the bottom of a lane."""
    left, width, height, space = 98.0, 900.0, 26.0, 12.0
    drawn = []
    for place, lane in enumerate(lanes):
        top = place * (height + space)
        drawn.append(text(left - 8, top + height / 2 + 4, lane.name, anchor="end"))
        drawn.append(element("line", x1=left, y1=top + height, x2=left + width, y2=top + height, class_="axis"))
        below: list[float] = []
        for colour, label, values in lane.kinds:
            below = below or [0.0] * len(values)
            step, path = width / max(len(values), 1), []
            for column, value in enumerate(values):
                if value <= 0:
                    continue
                x, tall = left + column * step, height * value / 100
                path.append(f"M{x:.5g} {top + height - below[column]:.5g}h{step:.4g}v{-tall:.4g}h{-step:.4g}z")
                below[column] += tall
            mean = sum(values) / max(len(values), 1) / 100
            about = element("title", f"{lane.name}: {label}, {_percent(mean)} of the time")
            drawn.append(element("path", about, d="".join(path), class_=f"f-{colour}"))
    bottom = len(lanes) * (height + space)
    return drawing(left + width, bottom + 14, title, *drawn, *time_axis(left, width, bottom + 8, 0.0, seconds))


def time_axis(left: float, width: float, y: float, begin: float, span: float) -> list[Markup]:
    """Return the labels of an axis of time, in round numbers of one unit; begin and span are seconds."""
    unit, scale = next(((unit, scale) for limit, unit, scale in TIMES if begin + span < limit), ("h", 3600.0))
    drawn = []
    for value in ticks(begin / scale, (begin + span) / scale, 5):
        share = (value * scale - begin) / span
        anchor = "start" if share < 1 - LAST_TICK else "end" if share > LAST_TICK else "middle"
        drawn.append(text(left + width * share, y, f"{value:g} {unit}" if value else "0", anchor=anchor))
    return drawn
