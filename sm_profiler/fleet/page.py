"""The fleet's page: one file that opens from disk, loads nothing, and escapes every text."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

import attrs
from markupsafe import Markup

from sm_profiler.fleet.analysis import parts_of
from sm_profiler.fleet.first import Step, common_steps, first_step
from sm_profiler.fleet.model import Fleet, FleetJob, Group, Week, other_name
from sm_profiler.fleet.wording import (
    STAGES,
    STATES,
    UNKNOWN,
    WHOLE_FROM,
    Amounts,
    advice,
    coverage,
    group_name,
    group_value,
    hours,
    label,
    machines,
    moment,
    monday,
    money,
    none_of,
    result,
)
from sm_profiler.formatting import clean, duration, first_sentences, percent, plural, shorten
from sm_profiler.jobs.listing import PAGE
from sm_profiler.render import charts
from sm_profiler.render.blocks import PageTable, Picture, cut_table
from sm_profiler.render.charts import ChartPart, drawing, element, text, ticks
from sm_profiler.render.page import Link, render_page

MAX_CAUSES = 6  # in the bar; the others are summed
MAX_GROUPS = 12  # rows a key
MAX_KEYS = 8
MAX_NAMES = 3  # of jobs in a cell
CAUSE_COLOURS = ("rose", "amber", "violet", "teal", "blue", "moss")
STAGE_COLOURS = {
    "waiting": "grey", "image": "violet", "download": "teal", "starting": "amber", "training": "blue", "uploading": "moss",
}  # fmt: skip

WIDTH, HEIGHT = 1000.0, 230.0
LEFT, RIGHT, TOP, BOTTOM = 70.0, 6.0, 14.0, 26.0
MAX_WEEKS = 53

PLAIN_ROWS = 100  # rows that the page has without its script
ADVICE_BYTES = 400_000  # of all advice texts together; the most expensive jobs have theirs
NAME = 90
REASON = 200  # characters, of its beginning
_HOLE = "\0"  # takes the place of the job's name in an address


@attrs.frozen
class GroupRow:
    """A value of a group's key: its amounts as text and as drawings."""

    value: str
    jobs: str
    spent: str
    lost: str
    share: str
    cause: str
    meter: Markup
    trend: Markup


def render_html(
    fleet: Fleet,
    out: str | os.PathLike[str] = "",
    links: Sequence[Link] = (),
    address: Callable[[FleetJob], str] | None = None,
) -> str:
    """Return the page of a fleet.

    Args:
        out: folder that the page is written to; links to the jobs' own reports are relative to it.
        links: other pages, where a server shows them.
        address: returns the address of a job's page, "" for none; default: that of its own report.
    """
    return _Page(fleet, address or partial(link, out=os.fspath(out))).render(links)


class _Page:
    def __init__(self, fleet: Fleet, address: Callable[[FleetJob], str]) -> None:
        self._fleet, self._address = fleet, address
        self._amounts = Amounts.of(fleet.totals)

    def render(self, links: Sequence[Link]) -> str:
        fleet, totals = self._fleet, self._fleet.totals
        chosen = _columns(fleet, self._amounts)
        return render_page(
            "fleet.html",
            package="sm_profiler.fleet",
            title=f"{self._title()} - sm-profiler",
            heading=self._title(),
            generated=fleet.generated,
            since=moment(fleet.since)[:10],
            tags=[f"{key}={value}" for key, value in sorted(fleet.tags.items())],
            headline=self._headline(),
            mood="open" if not totals.judged else "issue" if self._amounts.lost(totals) > 0 else "healthy",
            facts=self._facts(),
            bar=self._bar(),
            first=self._first(),
            evidence=self._evidence(),
            ranking=self._ranking(),
            written=self._amounts.format,
            columns=chosen,
            rows=[(self._address(job), [column.plain(job) for column in chosen]) for job in fleet.jobs[:PLAIN_ROWS]],
            rest=max(len(fleet.jobs) - PLAIN_ROWS, 0),
            data=_compact(fleet.jobs, chosen, self._address)
            | {"sums": [self._amounts.spent(totals), self._amounts.lost(totals)]},
            unpriced=totals.jobs - totals.priced if self._amounts.priced else 0,
            weeks=self._weeks(),
            groups=self._groups(),
            common=common_steps(fleet),
            hosts=self._hosts(),
            regressions=self._regressions(),
            failures=self._failures(),
            start=self._start(),
            quality=self._quality(),
            notes=fleet.notes,
            prices=fleet.prices,
            sources=fleet.sources,
            links=links,
        )

    def _title(self) -> str:
        return plural(self._fleet.totals.jobs, "training job")

    # ------------------------------------------------------------------ first screen

    def _headline(self) -> str:
        totals, amounts = self._fleet.totals, self._amounts
        if not totals.jobs:
            return none_of(self._fleet)
        if not totals.judged and not totals.failed:
            return "None of the jobs could be judged."
        lost, spent = amounts.lost(totals), amounts.spent(totals)
        noun = "" if amounts.priced else " of machine time"
        if spent <= 0:
            return "What the jobs cost is not known."
        judged = amounts.judged(totals)
        covered = coverage(totals)
        if lost <= 0:
            return f"Nothing was wasted: {amounts.format(judged)}{noun} were spent.{covered and ' ' + covered}"
        share = percent(lost / judged) if judged > 0 else "share unknown"
        return (
            f"{amounts.format(lost)} of {amounts.format(judged)}{noun} was wasted ({share}).{covered and ' ' + covered}"
        )

    def _facts(self) -> list[str]:
        totals = self._fleet.totals
        found = []
        if totals.jobs:
            found = ["All were judged" if totals.judged == totals.jobs else f"{totals.judged:,} were judged"]
        if left := totals.jobs - totals.judged:
            found.append(f"{left:,} {'was' if left == 1 else 'were'} not judged")
        if totals.failed:
            found.append(f"{totals.failed:,} failed")
        if totals.running:
            found.append(f"{totals.running:,} still running")
        if totals.unreadable:
            found.append(f"{totals.unreadable:,} could not be read")
        return found

    def _bar(self) -> Picture | None:
        totals, amounts = self._fleet.totals, self._amounts
        spent = amounts.spent(totals)
        if spent <= 0:
            return None
        found = [
            (label(cause.cause), amounts.amount(cause.usd, cause.instance_hours), cause.jobs) for cause in self._fleet.causes
        ]  # fmt: skip
        found = sorted((cause for cause in found if cause[1] > 0), key=lambda cause: -cause[1])
        parts = [
            ChartPart(name, amount, colour, plural(jobs, "job"))
            for (name, amount, jobs), colour in zip(found, CAUSE_COLOURS, strict=False)
        ]
        rest = sum(amount for _, amount, _ in found[MAX_CAUSES:])
        if rest > 0:
            parts.append(ChartPart(plural(len(found) - MAX_CAUSES, "other cause"), rest, "grey"))
        useful = max(amounts.judged(totals) - sum(part.value for part in parts), 0.0)
        parts.append(ChartPart("No waste found", useful, "sky"))
        unknown = max(spent - amounts.judged(totals), 0.0)
        if unknown > 0:
            left = sum(not job.is_judged for job in self._fleet.jobs if job.bill_usd is not None or not amounts.priced)
            parts.append(ChartPart("Not judged", unknown, "pale", plural(left, "job")))
        legend = tuple(
            (part.name, part.colour, f"{amounts.format(part.value)}|{percent(part.value / spent)}{', ' + part.note if part.note else ''}")
            for part in parts
        )  # fmt: skip
        title = "Where the money went" if amounts.priced else "Where the machine time went"
        return Picture(charts.bar(parts, title), title, legend, "bar")

    def _first(self) -> Step | None:
        """Return the one action that saves most, with the job that loses most."""
        step = first_step(self._fleet)
        job = step.job if step is not None else None
        if step is None or job is None:
            return step
        where = _where(job, step.cause)
        return attrs.evolve(step, name=shorten(job.title, NAME), link=self._address(job), where=where)

    def _evidence(self) -> list[tuple[str, str, str]]:
        """Return the figures of the first screen: name, value, and what it means."""
        totals, amounts = self._fleet.totals, self._amounts
        found = [("Machine time", hours(totals.instance_hours), "billed hours of all machines")]
        if totals.gpu_hours:
            found.append(("GPU time", hours(totals.gpu_hours), "hours of all GPUs"))
        if amounts.priced and totals.saved_usd:
            found.append(("Saved by spot machines", money(totals.saved_usd), ""))
        priced = sum(job.failed_usd is not None for job in self._fleet.jobs)
        if amounts.priced and totals.failed_usd:
            found.append(("Wasted on failed jobs", money(totals.failed_usd), plural(priced, "job")))
        return found

    def _ranking(self) -> list[tuple[Step, str]]:
        """Return the jobs that waste most, each with what it wastes: hours if its price is unknown."""
        found = []
        for top in self._fleet.top:
            job = self._fleet.jobs[top.job]
            step = Step(
                self._amounts.amount(top.usd, top.instance_hours),
                label(top.cause) + (f": {first_sentences(top.reason, REASON)}" if top.reason else ""),
                top.next_step, shorten(job.title, 90), self._address(job), _where(job, top.cause),
            )  # fmt: skip
            found.append((step, self._amounts.text(top.usd, top.instance_hours)))
        return found

    # ------------------------------------------------------------------ trends

    def _weeks(self) -> Picture | None:
        amounts, weeks = self._amounts, self._fleet.weeks
        if len(weeks) <= 1:
            return None
        drawn = _weekly(weeks, f"{amounts.noun} by week", amounts)
        legend: tuple[tuple[str, str, str], ...] = (("No waste found", "sky", ""), ("Wasted", "rose", ""))
        if any(amounts.spent(week.sums) > amounts.judged(week.sums) for week in weeks):
            legend = (*legend, ("Not judged", "pale", ""))
        return Picture(
            drawn,
            f"What the jobs cost that began in the week from that Monday on, in {amounts.noun}",
            legend,
            "chart wide",
        )

    def _groups(self) -> list[tuple[str, list[GroupRow], int]]:
        by_key: dict[str, list[Group]] = defaultdict(list)
        for group in self._fleet.groups:
            by_key[group.key].append(group)
        chosen = []
        for key, groups in list(by_key.items())[:MAX_KEYS]:
            groups.sort(key=lambda group: (-self._amounts.lost(group.sums), -self._amounts.spent(group.sums)))
            shown = groups[:MAX_GROUPS]
            chosen.append((key, shown, len(groups) - len(shown)))
        week_of = self._by_week({(key, group.value) for key, shown, _ in chosen for group in shown})
        found = []
        for key, shown, more in chosen:
            most = max(self._amounts.spent(group.sums) for group in shown)
            rows = [self._group(group, most, week_of.get((key, group.value), [])) for group in shown]
            found.append((shorten(group_name(key), 40), rows, more))
        return found

    def _group(self, group: Group, most: float, weeks: Sequence[tuple[float, float]]) -> GroupRow:
        amounts, sums = self._amounts.of_part(group.sums), group.sums
        spent, lost = amounts.spent(sums), amounts.lost(sums)
        drawn = spent if amounts == self._amounts else 0.0  # on the scale of the others
        name = shorten(group_value(group.value), 60) or "(unknown)"
        judged = amounts.judged(sums)
        written = f"{name}: {amounts.format(spent)} spent, {amounts.format(lost)} wasted, {amounts.format(spent - judged)} not judged"
        return GroupRow(
            name, f"{sums.jobs:,}", amounts.format(spent), amounts.format(lost) if judged > 0 else "",
            percent(lost / judged) if judged > 0 else "not judged",
            label(next(iter(sums.causes))) if sums.causes else "", _meter(drawn, lost, judged, most, written),
            _trend(weeks, f"{name}, by week"),
        )  # fmt: skip

    def _by_week(self, wanted: Container[tuple[str, str]]) -> dict[tuple[str, str], list[tuple[float, float]]]:
        """Return amounts spent and wasted by week for some values of keys."""
        places = {week.week: place for place, week in enumerate(self._fleet.weeks)}
        found: dict[tuple[str, str], list[list[float]]] = defaultdict(lambda: [[0.0, 0.0] for _ in places])
        for job in self._fleet.jobs:
            if job.week not in places:
                continue
            for name, value, part in ((key, *one) for key in job.groups for one in parts_of(job, key)):
                if (name, value) not in wanted:
                    continue
                sums = found[name, value][places[job.week]]
                sums[0] += self._amounts.amount(part.bill_usd, part.instance_hours)
                sums[1] += self._amounts.amount(part.lost_usd, part.lost_instance_hours)
        return {key: [(spent, lost) for spent, lost in columns] for key, columns in found.items()}

    # ------------------------------------------------------------------ tables

    def _hosts(self) -> PageTable:
        return cut_table(
            ("Machine", "Slow in", "Its steps take", "What it cost", "Jobs"),
            [
                (
                    shorten(host.host, 60), f"{host.slow:,} of {plural(host.jobs, 'job')}", f"{host.relative:.2f} times as long",
                    self._amounts.text(host.usd, host.instance_hours), _listed(host.names),
                )
                for host in self._fleet.hosts
            ],
        )  # fmt: skip

    def _regressions(self) -> PageTable:
        fleet = self._fleet
        return cut_table(
            ("Job", "A step takes", "Before", "Change", "What else changed", "What it cost"),
            [
                (
                    fleet.jobs[regression.job].title, duration(regression.step_ms / 1e3), duration(regression.step_ms_before / 1e3), f"+{percent(regression.change)}",
                    "; ".join(
                        f"{group_name(key.replace('_', ' '))}: {shorten(group_value(before), 40) or 'none'} to {shorten(group_value(now), 40) or 'none'}"
                        for key, (before, now) in sorted(regression.changed.items())
                    ) or "nothing that is known",
                    money(regression.usd) if regression.usd is not None else "",
                )
                for regression in fleet.regressions
            ],
        )  # fmt: skip

    def _failures(self) -> PageTable:
        fleet = self._fleet
        return cut_table(
            ("Job", "Status", "Reason", "What it cost"),
            [
                (
                    fleet.jobs[failure.job].title, _state(failure.status, failure.interruptions), first_sentences(failure.reason, REASON),
                    self._amounts.text(failure.usd, failure.instance_hours),
                )
                for failure in fleet.failures
            ],
            MAX_GROUPS,
        )  # fmt: skip

    def _start(self) -> Picture | None:
        stages = self._fleet.totals.stages
        parts = [
            ChartPart(STAGES[key], stages.get(key, 0.0), colour)
            for key, colour in STAGE_COLOURS.items()
            if stages.get(key, 0.0) > 0
        ]
        if not parts:
            return None
        whole = sum(part.value for part in parts)
        legend = tuple((part.name, part.colour, f"{hours(part.value)}|{percent(part.value / whole)}") for part in parts)
        title = "Hours of machines from the request to the end; waiting for a machine is not billed"
        return Picture(charts.bar(parts, title), title, legend, "bar")

    def _quality(self) -> dict[str, Any]:
        fleet, totals = self._fleet, self._fleet.totals
        bad = [job for job in fleet.jobs if job.error]
        lost = sum(job.lost_records for job in fleet.jobs)
        ready = sum(job.judged == "report" for job in fleet.jobs)
        origin = (
            f"Of {plural(totals.jobs, 'job')}, {ready:,} had a report already, {totals.judged - ready:,} were judged for "
            f"this page, {totals.jobs - totals.judged:,} were not judged."
        )
        read = f"{plural(lost, 'record')} of their profiles could not be read." if lost else "No records were lost."
        table = cut_table(
            ("Job", "Where", "Why it could not be read"),
            [(job.name or "unknown", shorten(job.source, 90), shorten(job.error, 200)) for job in bad],
        )
        return {"sentences": [origin, read], "table": table}


def _where(job: FleetJob, cause: str) -> str:
    line = job.where[0] if job.where and job.verdict == cause else None
    return f"{shorten(line.file, 60)}:{line.line}" if line else ""


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(shorten(name, 50) for name in names[:MAX_NAMES])
    return f"{shown} and {len(names) - MAX_NAMES:,} more" if len(names) > MAX_NAMES else shown


def _state(status: str, interruptions: int) -> str:
    times = f"interrupted {plural(interruptions, 'time')}" if interruptions else ""
    return ", ".join(filter(None, (STATES.get(status, status), times)))


def _weekly(weeks: Sequence[Week], title: str, amounts: Amounts) -> Markup:
    """Draw spent amounts as columns, with the parts that were wasted and not judged in other colours.

    Where dollars are drawn, a week without a price has its hours of machines in place of a column: it was not free.
    """
    weeks = weeks[-MAX_WEEKS:]
    most = max((amounts.spent(week.sums) for week in weeks), default=0.0)
    if most <= 0:
        return Markup("")
    plot, wide = HEIGHT - TOP - BOTTOM, (WIDTH - LEFT - RIGHT) / max(len(weeks), 4)
    drawn = []
    for tick in ticks(0.0, most, 4):
        y = TOP + plot * (1 - tick / most)
        drawn += [
            element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"),
            text(LEFT - 8, y + 4, amounts.format(tick), anchor="end"),
        ]
    every = max(-(-len(weeks) // 13), 1)
    for place, week in enumerate(weeks):
        left, base, sums, own = LEFT + wide * (place + 0.1), TOP + plot, week.sums, amounts.of_part(week.sums)
        spent, lost, judged, day = own.spent(sums), own.lost(sums), own.judged(sums), monday(week.week)
        about = f"week of {day}: {own.format(spent)} spent, {own.format(lost)} wasted, {own.format(spent - judged)} not judged"
        if place % every == 0:
            drawn.append(text(left + wide * 0.4, base + 17, day, anchor="middle"))
        if own != amounts:
            hours_of = text(left + wide * 0.4, base - 6, own.format(spent), anchor="middle")
            drawn.append(element("g", element("title", f"{about}; no price is known"), hours_of))
            continue
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
    drawn.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=TOP + plot, y2=TOP + plot, class_="axis"))
    return drawing(WIDTH, HEIGHT, title, *drawn)


def _parts(spent: float, lost: float, judged: float) -> list[tuple[float, str]]:
    """Return what was wasted, what was not, and what was not judged, each with its colour."""
    judged = min(judged, spent)
    red = min(lost, judged)
    return [(red, "rose"), (judged - red, "sky"), (spent - judged, "pale")]


def _meter(spent: float, lost: float, judged: float, most: float, title: str) -> Markup:
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


def _trend(columns: Sequence[tuple[float, float]], title: str) -> Markup:
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
            return UNKNOWN if self.kind in ("usd", "hours", "share") else ""
        if self.kind == "date":
            return moment(value * 60)
        if self.kind == "share":
            return f"{value} %"
        return money(value) if self.kind == "usd" else hours(value) if self.kind == "hours" else str(value)

    @property
    def css(self) -> str:
        return {"usd": "n", "hours": "n", "share": "n", "date": "when", "text": "t", "cause": "cause"}.get(
            self.kind, ""
        )


def _columns(fleet: Fleet, amounts: Amounts) -> list[Column]:
    kind = "usd" if amounts.priced else "hours"
    return [
        Column("job", "Job", "name", lambda job: shorten(job.name, NAME)),
        *([Column("job name", "Job name", "text", _launched)] if any(map(_launched, fleet.jobs)) else []),
        Column("started", "Started", "date", _started),
        Column("cause", "Result", "cause", result),
        Column(
            "lost",
            "Wasted",
            kind,
            lambda job: _rounded(_known_loss(job, job.lost_usd if amounts.priced else job.lost_instance_hours)),
        ),
        Column("share", "Share", "share", lambda job: _percent(_known_loss(job, job.lost_share))),
        *([Column("spent", "Spent", kind, lambda job: _rounded(job.bill_usd))] if amounts.priced else []),
        Column("hours" if amounts.priced else "spent", "Hours", "hours", lambda job: _rounded(job.instance_hours)),
        Column("machine", "Machines", "text", lambda job: shorten(machines(job), 60)),
        Column("status", "Status", "text", lambda job: STATES.get(job.status, shorten(job.status, 30))),
        *(
            _by(key)
            for key in dict.fromkeys(group.key for group in fleet.groups)
            if key not in {"instance-type", "job"}
        ),
    ]


def _known_loss(job: FleetJob, lost: float | None) -> float | None:
    """Return what a job lost; None if it was not judged, and lost nothing that is known without a verdict."""
    return lost if job.is_judged or lost else None


def _percent(share: float | None) -> int | None:
    return None if share is None else round(100 * share)


def _launched(job: FleetJob) -> str:
    """Return what its launcher calls a job, if that is another name."""
    return shorten(other_name(job.name, job.job_name), NAME)


def _by(key: str) -> Column:
    return Column(
        f"by {key}", shorten(group_name(key), 30), "text", lambda job: shorten(group_value(job.groups.get(key, "")), 44)
    )


def _compact(jobs: Sequence[FleetJob], chosen: Sequence[Column], address: Callable[[FleetJob], str]) -> dict[str, Any]:
    """Return the table for the page's script: a list a column, with each repeated text only once."""
    written = []
    for column in chosen:
        values = [column.read(job) for job in jobs]
        content: dict[str, Any] = {"key": column.key, "name": column.name, "kind": column.kind, "css": column.css}
        if column.kind in ("text", "cause"):
            content["texts"], content["codes"] = _coded(clean(value) for value in values)
        else:
            content["values"] = values
        written.append(content)
    texts, codes = _coded(_pattern(job, address(job)) for job in jobs)
    lines, left = [], ADVICE_BYTES
    for job in jobs:
        line = first_sentences(advice(job), 420)
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


def _coded(values: Iterable[str]) -> tuple[list[str], list[int]]:
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
