"""Charts of the fleet's page as SVG: columns by week, meters and small trends of groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup

from sm_profiler.render.charts import ticks
from sm_profiler.render.svg import drawing, element, text

WIDTH, HEIGHT = 1000.0, 230.0
LEFT, RIGHT, TOP, BOTTOM = 70.0, 6.0, 14.0, 26.0
MAX_WEEKS = 53


def weeks(columns: Sequence[tuple[str, float, float, float]], title: str, written: Callable[[float], str]) -> Markup:
    """Draw spent amounts as columns, with the parts that were wasted and not judged in other colours.

    Args:
        columns: label, amounts spent, wasted and judged.
        title: what screen readers read.
        written: formats an amount.
    """
    columns = columns[-MAX_WEEKS:]
    most = max((spent for _, spent, _, _ in columns), default=0.0)
    if most <= 0:
        return Markup("")
    plot, wide = HEIGHT - TOP - BOTTOM, (WIDTH - LEFT - RIGHT) / max(len(columns), 4)
    drawn = []
    for tick in ticks(0.0, most, 4):
        y = TOP + plot * (1 - tick / most)
        drawn += [
            element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"),
            text(LEFT - 8, y + 4, written(tick), anchor="end"),
        ]
    every = max(-(-len(columns) // 13), 1)
    for place, (label, spent, lost, judged) in enumerate(columns):
        left, base = LEFT + wide * (place + 0.1), TOP + plot
        about = f"week of {label}: {written(spent)} spent, {written(lost)} wasted, {written(spent - judged)} not judged"
        height = 0.0
        for amount, colour in _parts(spent, lost, judged):
            tall = plot * amount / most
            height += tall
            drawn.append(
                element(
                    "rect",
                    element("title", about),
                    x=left,
                    y=base - height,
                    width=wide * 0.8,
                    height=tall,
                    class_=f"f-{colour}",
                )
            )
        if place % every == 0:
            drawn.append(text(left + wide * 0.4, base + 17, label, anchor="middle"))
    drawn.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=TOP + plot, y2=TOP + plot, class_="axis"))
    return drawing(WIDTH, HEIGHT, title, *drawn)


def _parts(spent: float, lost: float, judged: float) -> list[tuple[float, str]]:
    """Return what was wasted, what was not, and what was not judged, each with its colour."""
    judged = min(judged, spent)
    red = min(lost, judged)
    return [(red, "rose"), (judged - red, "sky"), (spent - judged, "pale")]


def meter(spent: float, lost: float, judged: float, most: float, title: str) -> Markup:
    """Draw what one group spent, wasted and had judged, on the scale of the largest group."""
    if most <= 0:
        return Markup("")
    drawn, left = [], 0.0
    for amount, colour in _parts(spent, lost, judged):
        wide = 120 * amount / most
        if amount > 0:
            drawn.append(element("rect", x=left, y=0, width=max(wide, 1.0), height=12, class_=f"f-{colour}"))
        left += wide
    return drawing(120, 12, title, *drawn, kind="meter", keep=False)


def trend(columns: Sequence[tuple[float, float]], title: str) -> Markup:
    """Draw what one group spent and wasted week by week, small."""
    columns = columns[-MAX_WEEKS:]
    most = max((spent for spent, _ in columns), default=0.0)
    if most <= 0 or len(columns) <= 1:
        return Markup("")
    wide = 110 / len(columns)
    spent = [(place, 26 * amount / most) for place, (amount, _) in enumerate(columns)]
    lost = [(place, 26 * min(amount, whole) / most) for place, (whole, amount) in enumerate(columns)]
    return drawing(
        110, 26, title, *(element("path", d=_bars(tall, wide), class_=f"f-{colour}") for tall, colour in ((spent, "sky"), (lost, "rose"))),
        kind="spark",
    )  # fmt: skip


def _bars(tall: Sequence[tuple[int, float]], wide: float) -> str:
    return "".join(
        f"M{place * wide:.4g} 26v{-height:.3g}h{wide * 0.82:.3g}v{height:.3g}z" for place, height in tall if height > 0
    )
