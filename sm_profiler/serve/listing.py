"""The list of jobs: a row for each, and which of them an address requests, in which order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

import attrs
from markupsafe import Markup

from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.model import Finding
from sm_profiler.fleet.model import titled
from sm_profiler.fleet.wording import hours, moment, money
from sm_profiler.formatting import duration, plural
from sm_profiler.render import charts
from sm_profiler.serve.fleet_page import Facts
from sm_profiler.serve.jobs import Found
from sm_profiler.serve.pages import ENDS, state_line
from sm_profiler.serve.snapshot import Snapshot

ROWS = 100  # of a page
MINUTE_S = 60.0
DAY = len("2026-11-27")
MAX_TEXT = 200  # characters of a text in an address
SHOWN_HOSTS = MAX_UNKNOWN = 3
RUNNING, WAITING, FAILED, UNREADABLE, ENDED = "running", "waiting", "failed", "cannot be read", "ended"
_UNKNOWN, _UNREAD = Facts(), Snapshot()


@attrs.frozen
class Row:
    """A job in the list.

    Attributes:
        id: its part of the page's address.
        name: its name.
        state: one word, by which jobs are chosen.
        line: the same as it is shown, with what else is known of it.
        result: label of the verdict; "" without one.
        mood: `issue`, `healthy` or `open`.
        headline: of the verdict, after the reason if the job failed.
        user: who ran it; "" if unknown.
        hosts: its machines.
        job: what its launcher calls it; "" if unknown.
        is_judged: what it cost is known, as far as that can be.
        cost, lost: as text; "" if unknown.
        usd, machine_hours: the cost in both units.
        begun: when it began, seconds since the epoch; None if unknown.
        latest: time of its latest data, or of the last change of its files until its data is read.
        spark: drawings of its step time and GPUs.
    """

    id: str
    name: str
    state: str
    line: str
    result: str = ""
    mood: str = "open"
    headline: str = ""
    user: str = ""
    hosts: tuple[str, ...] = ()
    job: str = ""
    is_judged: bool = False
    cost: str = ""
    lost: str = ""
    usd: float = 0.0
    machine_hours: float = 0.0
    begun: float | None = None
    latest: float = 0.0
    spark: Markup = attrs.field(default=Markup())

    @property
    def label(self) -> str:
        return titled(self.name, self.job)

    @property
    def when(self) -> str:
        """Its first and latest time, the day once if both are on the same."""
        begun, latest = moment(self.begun), moment(self.latest or None)
        if not begun or not latest or self.latest - (self.begun or 0.0) < MINUTE_S:
            return latest
        return f"since {begun}" if self.state == RUNNING else f"{begun} to {latest.removeprefix(begun[:DAY]).strip()}"

    @property
    def machines(self) -> str:
        """The first of its machines, and how many more there are."""
        more = len(self.hosts) - SHOWN_HOSTS
        return ", ".join(self.hosts[:SHOWN_HOSTS]) + (f" and {more} more" if more > 0 else "")

    @property
    def text(self) -> str:
        """Text that is searched."""
        return "\n".join((self.name, self.job, self.user, *self.hosts, self.state, self.result)).lower()


def row_of(found: Found, snapshot: Snapshot | None, facts: Facts = _UNKNOWN, *, being_read: bool = False) -> Row:
    """Return the row of a job.

    Args:
        found: the job as it was listed.
        snapshot: what its follower has; None if it has none.
        facts: what the fleet has of it.
        being_read: its follower is at work.
    """
    finding, end = found.saved, found.end
    if snapshot is not None:
        end = snapshot.end if snapshot.state == "ended" else end
        finding = snapshot.main or finding or snapshot.saved
    if found.state == "ended" and facts.failure and not end:  # the service or the scheduler has seen more
        end = facts.failure
        finding = None if finding is not None and finding.kind.is_healthy else finding
    seen = snapshot or _UNREAD
    state, line = state_of(found, snapshot, facts, being_read=being_read)
    return Row(
        found.id, found.name, state, line, facts.label if finding is None else finding.label,
        mood=facts.mood if finding is None else _mood(finding),
        headline=facts.headline if finding is None else _headline(end, finding),
        user=facts.user or found.owner.user, hosts=tuple(dict.fromkeys((*facts.hosts, *found.owner.hosts))),
        job=facts.job or found.owner.job, is_judged=facts.is_judged, cost=facts.cost, lost=facts.lost,
        usd=facts.usd, machine_hours=facts.machine_hours, begun=seen.begun or facts.started,
        latest=seen.data_at or (facts.ended if found.state == "ended" else None) or found.changed,
    )  # fmt: skip


def _headline(end: str, finding: Finding) -> str:
    """Return why a job failed and what its verdict is, as far as these are two things."""
    if not end or finding.is_end:
        return finding.headline
    return end if finding.kind is Class.INCONCLUSIVE else f"{end.rstrip('.')}. {finding.headline}"


def _mood(finding: Finding) -> str:
    return "open" if finding.is_open else "healthy" if finding.kind.is_healthy else "issue"


def state_of(found: Found, snapshot: Snapshot | None, facts: Facts, *, being_read: bool) -> tuple[str, str]:
    """Return the state of a job in a word, and in a line.

    The follower has seen the most, and its word counts, except that it may not have noticed yet that the job has ended. All
    three are of the job's files as they are: what was learned of earlier ones, as of an attempt before this, is left out.

    Args:
        found: the job as it was listed.
        snapshot: what its follower has; None if it has none.
        facts: what the fleet has of it.
        being_read: its follower is at work.
    """
    seen = snapshot.state if snapshot is not None else ""
    read = ENDS.get(snapshot.status, "") if snapshot is not None and seen == "ended" else ""
    end = found.status or facts.end or read or (FAILED if found.end else ENDED)
    if snapshot is not None and seen == "unreadable":
        return UNREADABLE, state_line(snapshot)
    if snapshot is not None and seen == "ended":
        return end, state_line(snapshot, end)
    if found.state != "ended":
        word = WAITING if seen in {"waiting", ""} and found.state != "running" else RUNNING
        return word, state_line(snapshot) if snapshot is not None else found.state or word
    if snapshot is not None and seen == "running" and not found.status:  # ended by the age of its files
        return end, state_line(snapshot)
    if found.problem:
        return end, f"{end}: {found.problem}"
    if being_read:
        return end, f"{end}; it is being read"
    return end, f"{end} without data" if snapshot is not None and seen == "waiting" and snapshot.version else end


def sparks(snapshot: Snapshot) -> Markup:
    """Draw step time and use of the GPUs; nothing for a single value."""
    steps, gpu = snapshot.spark or (0.0,), snapshot.gpu or (0.0,)
    times = f"Step time: {duration(steps[-1])} at the end, {duration(min(steps))} to {duration(max(steps))}"
    use = f"GPU use: {gpu[-1]:.0f} % at the end, {min(gpu):.0f} to {max(gpu):.0f} %"
    return charts.line(range(len(steps)), steps, times) + charts.line(
        range(len(gpu)), gpu, use, colour="blue", most=100.0
    )


# What an address may request: its name → what it is called, and the values that a row has.
FILTERS: dict[str, tuple[str, Callable[[Row], Iterable[str]]]] = {
    "state": ("State", lambda row: (row.state,)),
    "result": ("Result", lambda row: (row.result,) if row.result else ()),
    "user": ("User", lambda row: (row.user,) if row.user else ()),
    "host": ("Machine", lambda row: row.hosts),
}
# Its name → what it is called, and its key; the first is the default.
SORTS: dict[str, tuple[str, Callable[[Row], Any]]] = {
    "newest": ("Newest first", lambda row: -row.latest),
    "oldest": ("Oldest first", lambda row: row.latest),
    "cost": ("Most expensive first", lambda row: (-row.usd, -row.machine_hours)),
    "name": ("Name", lambda row: row.name.lower()),
    "user": ("User", lambda row: (not row.user, row.user.lower())),
    "host": ("Machine", lambda row: (not row.hosts, row.hosts)),
    "state": ("State", lambda row: row.state),
    "result": ("Result", lambda row: (not row.result, row.result)),
}
NEWEST = next(iter(SORTS))


@attrs.frozen
class Choice:
    """A value of a filter, with the number of jobs that have it."""

    value: str
    jobs: int


@attrs.frozen
class Query:
    """A choice of jobs and their order, as an address has them; it can be kept as a bookmark.

    Attributes:
        words: all of them are in a row's text, in upper or lower case.
        wanted: name of a filter → the value that a row has.
        sort: one of SORTS.
        page: from 1 on.
        unknown: what else the address has, as its names and values, and nothing is chosen by.
    """

    words: str = ""
    wanted: Mapping[str, str] = attrs.field(factory=dict)
    sort: str = NEWEST
    page: int = 1
    unknown: tuple[str, ...] = ()

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Query:
        """Read an address; a result may be a verdict's class as well as its label."""
        page, sort = given.get("page", ""), given.get("sort", "")
        wanted = {name: given[name][:MAX_TEXT] for name in FILTERS if given.get(name)}
        if kind := next((kind for kind in Class if kind.value == wanted.get("result")), None):
            wanted["result"] = kind.label
        unknown = [name[:MAX_TEXT] for name in given if name not in {"q", "sort", "page", *FILTERS}]
        if sort and sort not in SORTS:
            unknown.append(f"sort={sort[:MAX_TEXT]}")
        return cls(
            given.get("q", "")[:MAX_TEXT].strip(),
            wanted,
            sort if sort in SORTS else NEWEST,
            max(int(page), 1) if page.isascii() and page.isdigit() and len(page) < len(str(MAX_TEXT**2)) else 1,
            tuple(unknown[:MAX_UNKNOWN]),
        )

    def address(self, page: int) -> str:
        """Return the address of another page of the same rows."""
        pairs = {"q": self.words, **self.wanted, "sort": "" if self.sort == NEWEST else self.sort}
        pairs["page"] = str(page) if page > 1 else ""
        given = {name: value for name, value in pairs.items() if value}
        return f"./?{urlencode(given)}" if given else "./"

    def select(self, rows: Iterable[Row]) -> list[Row]:
        """Return the rows that are requested, in their order."""
        words = self.words.lower().split()
        found = [
            row
            for row in rows
            if all(value in FILTERS[name][1](row) for name, value in self.wanted.items())
            and (not words or all(word in row.text for word in words))
        ]
        return sorted(found, key=SORTS[self.sort][1])

    def choices(self, rows: Sequence[Row]) -> list[tuple[str, str, str, list[Choice]]]:
        """Return name, caption, chosen value and values of each filter that some row has a value of, or that is set."""
        found = []
        for name, (caption, values) in FILTERS.items():
            counts = Counter(value for row in rows for value in values(row))
            chosen = self.wanted.get(name, "")
            if chosen:
                counts.setdefault(chosen, 0)
            if counts:
                found.append((name, caption, chosen, [Choice(value, counts[value]) for value in sorted(counts)]))
        return found


@attrs.frozen
class Listed:
    """The rows of a page.

    Attributes:
        query: the choice.
        rows: at most ROWS.
        found: number of rows on all pages.
        total: number of all jobs.
        summary: how many jobs these are, and what they cost.
        pending: how many of them are not judged yet, and of those whose user and machines are unknown too.
    """

    query: Query
    rows: Sequence[Row]
    found: int
    total: int
    summary: str
    pending: int = 0

    @classmethod
    def of(cls, query: Query, rows: Sequence[Row]) -> Listed:
        found = query.select(rows)
        pages = max(-(-len(found) // ROWS), 1)
        query = attrs.evolve(query, page=min(query.page, pages))
        first = (query.page - 1) * ROWS
        chosen = {row.id for row in found}
        pending = sum(not row.is_judged and (row.id in chosen or not (row.user or row.hosts)) for row in rows)
        return cls(query, found[first : first + ROWS], len(found), len(rows), summary(found, len(rows)), pending)

    @property
    def first(self) -> int:
        """Number of the first row, from 1 on."""
        return (self.query.page - 1) * ROWS + 1

    @property
    def previous(self) -> str:
        return self.query.address(self.query.page - 1) if self.query.page > 1 else ""

    @property
    def next(self) -> str:
        return self.query.address(self.query.page + 1) if self.first + ROWS <= self.found else ""


def summary(rows: Sequence[Row], total: int) -> str:
    """Return how many jobs there are, and what they cost as far as that is known."""
    text = f"{len(rows):,} of {plural(total, 'job')}" if len(rows) < total else plural(total, "job")
    usd = sum(row.usd for row in rows)
    unpriced = sum(row.machine_hours for row in rows if not row.usd)
    costs = [money(usd)] * (usd > 0) + [f"{hours(unpriced)} of machines without a price"] * (unpriced > 0)
    return f"{text}: {' and '.join(costs)}" if costs else text
