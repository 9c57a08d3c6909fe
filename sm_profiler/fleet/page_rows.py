"""Rows and charts of the fleet's page."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from urllib.parse import quote

import attrs
from markupsafe import Markup

from sm_profiler.fleet.model import Fleet, FleetJob
from sm_profiler.fleet.page_words import (
    STATES,
    WHOLE_FROM,
    Amounts,
    advice,
    group_name,
    group_value,
    hours,
    machines,
    moment,
    money,
    result,
)  # fmt: skip
from sm_profiler.formatting import clean, shorten
from sm_profiler.jobs.listing import PAGE
from sm_profiler.render.charts import drawing, element, text, ticks

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


PLAIN_ROWS = 100  # rows that the page has without its script
ADVICE_BYTES = 400_000  # of all advice texts together; the most expensive jobs have theirs
NAME = 90
_HOLE = "\0"  # takes the place of the job's name in an address


@attrs.frozen
class Column:
    """A column of the table: `kind` decides how the script writes, sorts and filters it."""

    key: str
    name: str
    kind: str
    read: Callable[[FleetJob], Any]

    def plain(self, job: FleetJob) -> str:
        """Return the cell as text, as the script writes it."""
        value = self.read(job)
        if value is None:
            return ""
        if self.kind == "date":
            return moment(value * 60)
        if self.kind == "share":
            return f"{value} %"
        return money(value) if self.kind == "usd" else hours(value) if self.kind == "hours" else str(value)

    @property
    def css(self) -> str:
        """Class of its cells."""
        return {"usd": "n", "hours": "n", "share": "n", "date": "when", "text": "t", "cause": "cause"}.get(
            self.kind, ""
        )


def columns(fleet: Fleet, amounts: Amounts) -> list[Column]:
    """Return the columns of a fleet's table."""
    found = [
        Column("job", "Job", "name", lambda job: shorten(job.name, NAME)),
        Column("started", "Started", "date", _started),
        Column("cause", "Result", "cause", result),
    ]
    if amounts.priced:
        found += [
            Column("lost", "Wasted", "usd", lambda job: _rounded(job.lost_usd)),
            Column(
                "share", "Share", "share", lambda job: None if job.lost_share is None else round(100 * job.lost_share)
            ),
            Column("spent", "Spent", "usd", lambda job: _rounded(job.bill_usd)),
        ]
        found.append(Column("hours", "Hours", "hours", lambda job: _rounded(job.instance_hours)))
    else:
        found += [
            Column("lost", "Wasted", "hours", lambda job: _rounded(job.lost_instance_hours)),
            Column(
                "share", "Share", "share", lambda job: None if job.lost_share is None else round(100 * job.lost_share)
            ),
            Column("spent", "Hours", "hours", lambda job: _rounded(job.instance_hours)),
        ]
    found += [
        Column("machine", "Machines", "text", lambda job: shorten(machines(job), 60)),
        Column("status", "Status", "text", lambda job: STATES.get(job.status, shorten(job.status, 30))),
    ]  # fmt: skip
    found += [_by(key) for key in dict.fromkeys(group.key for group in fleet.groups) if key != "instance-type"]
    return found


def _by(key: str) -> Column:
    return Column(
        f"by {key}", shorten(group_name(key), 30), "text", lambda job: shorten(group_value(job.groups.get(key, "")), 44)
    )


def compact(jobs: Sequence[FleetJob], chosen: Sequence[Column], address: Callable[[FleetJob], str]) -> dict[str, Any]:
    """Return the table for the page's script: a list a column, with each repeated text only once."""
    written = []
    for column in chosen:
        values = [column.read(job) for job in jobs]
        one: dict[str, Any] = {"key": column.key, "name": column.name, "kind": column.kind, "css": column.css}
        if column.kind in ("text", "cause"):
            one["texts"], one["codes"] = coded(clean(value) for value in values)
        else:
            one["values"] = values
        written.append(one)
    texts, codes = coded(_pattern(job, address(job)) for job in jobs)
    lines, left = [], ADVICE_BYTES
    for job in jobs:
        line = shorten(advice(job), 420)
        left -= len(line.encode("utf-8", "replace")) + 3
        if left < 0:
            break
        lines.append(line)
    return {
        "total": len(jobs),
        "sorted": "lost",
        "columns": written,
        "links": {"texts": texts, "codes": codes},
        "advice": lines,
    }


def coded(values: Iterable[str]) -> tuple[list[str], list[int]]:
    """Return the different texts and, for each value, its place among them."""
    places: dict[str, int] = {}
    codes = [places.setdefault(value, len(places)) for value in values]
    return list(places), codes


def link(job: FleetJob, out: str) -> str:
    """Return the address of a job's own report for a link, relative to the page where possible; "" if there is none."""
    if not job.report:
        return ""
    if re.match(r"https?://", job.report):
        return quote(f"{job.report.rstrip('/')}/{PAGE}", safe="/:?=&%-._~")
    if "://" in job.report or "://" in out:
        return ""  # a browser opens no s3:// address
    path = os.path.join(job.report, PAGE)  # text, which relpath returns as well
    return quote(os.path.relpath(path, out or os.curdir), safe="/-._~")


def _pattern(job: FleetJob, address: str) -> str:
    """Return an address with a hole in place of the job's name, so that most jobs share one."""
    plain = re.fullmatch(r"[A-Za-z0-9._-]{4,90}", job.name)
    return address.replace(job.name, _HOLE) if plain else address


def _started(job: FleetJob) -> int | None:
    seconds = job.started if job.started is not None else job.created
    return int(seconds // 60) if seconds is not None and moment(seconds) else None


def _rounded(value: float | None) -> float | int | None:
    """Return a number with no more digits than the table and its sums show."""
    if value is None:
        return None
    found = round(value, 5 if value < 1 else 2 if value < WHOLE_FROM else 1)
    return int(found) if found == int(found) else found
