"""Charts of the fleet's page as SVG: columns by week, meters and small trends of groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from markupsafe import Markup

from sm_profiler.report.charts import ticks
from sm_profiler.report.svg import drawing, element, text

WIDTH, HEIGHT = 1000.0, 230.0
LEFT, RIGHT, TOP, BOTTOM = 70.0, 6.0, 14.0, 26.0
MAX_WEEKS = 53


def weeks(columns: Sequence[tuple[str, float, float]], title: str, written: Callable[[float], str]) -> Markup:
    """Draw spent amounts as columns, with the wasted part in another colour.

    Args:
        columns: label, amount spent, amount wasted.
        title: what screen readers read.
        written: formats an amount.
    """
    columns = columns[-MAX_WEEKS:]
    most = max((spent for _, spent, _ in columns), default=0.0)
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
    for place, (label, spent, lost) in enumerate(columns):
        left, tall, red = LEFT + wide * (place + 0.1), plot * spent / most, plot * min(lost, spent) / most
        about = f"week of {label}: {written(spent)} spent, {written(lost)} wasted"
        base = TOP + plot
        drawn += [
            element("rect", element("title", about), x=left, y=base - tall, width=wide * 0.8, height=max(tall - red, 0.0), class_="f-sky"),
            element("rect", element("title", about), x=left, y=base - red, width=wide * 0.8, height=red, class_="f-rose"),
        ]  # fmt: skip
        if place % every == 0:
            drawn.append(text(left + wide * 0.4, base + 17, label, anchor="middle"))
    drawn.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=TOP + plot, y2=TOP + plot, class_="axis"))
    return drawing(WIDTH, HEIGHT, title, *drawn)


def meter(spent: float, lost: float, most: float, title: str) -> Markup:
    """Draw what one group spent and wasted, on the scale of the largest group."""
    if most <= 0:
        return Markup("")
    whole, red = 120 * spent / most, 120 * min(lost, spent) / most
    return drawing(
        120, 12, title, element("rect", x=0, y=0, width=max(whole, 1.0), height=12, class_="f-sky"),
        element("rect", x=0, y=0, width=red, height=12, class_="f-rose"), kind="meter", keep=False,
    )  # fmt: skip


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
