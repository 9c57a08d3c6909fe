"""The ledger on the page and in the terminal: where every second of every rank went."""

from __future__ import annotations

from sm_profiler.diagnosis.ledger import UNKNOWN, Totals
from sm_profiler.formatting import duration, percent, shorten
from sm_profiler.render import charts
from sm_profiler.render.blocks import Picture, Section, cut_table
from sm_profiler.render.charts import ChartPart

MAX_ACTIVITIES = 8  # columns of the table, parts of the bar; the others are summed
MIN_NAMED = 0.0005
# Activity → key of the part of the loop whose colour it has.
_COLOURS = {
    "forward": "blue", "backward": "sky", "optimizer": "teal", "compiled": "blue", "compute": "blue", "waiting for data": "amber",
    "data wait": "amber", "evaluation": "violet", "garbage collection": "moss", "communication": "teal",
    "waiting for other ranks": "rose", "unseen": "pale", "step": "grey", "other code": "rose", "saving": "plum", "logging": "sand",
    "callbacks": "olive", "compiling": "steel", "compiling again": "steel",
}  # fmt: skip
_SPARE = ("moss", "violet", "grey", "amber", "rose")


def shares(totals: Totals) -> list[tuple[str, float, str]]:
    """Return name, share and colour of each activity; of many, the smallest are summed."""
    found, spare = [], 0
    names = totals.activities
    for name in names[:MAX_ACTIVITIES]:
        colour = _COLOURS.get(name)
        if colour is None:
            colour, spare = _SPARE[spare % len(_SPARE)], spare + 1
        found.append((name, totals.share(name), colour))
    rest = totals.share(*names[MAX_ACTIVITIES:])
    return [*found, (f"{len(names) - MAX_ACTIVITIES} others", rest, "grey")] if rest >= MIN_NAMED else found


def picture(totals: Totals) -> Picture:
    """Draw the activities of all ranks as a bar."""
    title = "Where the time of all ranks goes"
    drawn = [ChartPart(name, share, colour) for name, share, colour in shares(totals)]
    legend = tuple(
        (shorten(name, 40), colour, percent(share)) for name, share, colour in shares(totals) if share >= MIN_NAMED
    )
    return Picture(charts.bar(drawn, title), title, legend, "bar")


def tiles(totals: Totals) -> list[tuple[str, str, str]]:
    """Return the tiles of a report on nothing but a ledger: label, value, note."""
    steps = max((rank.steps for rank in totals.ranks), default=0)
    return [
        ("Ranks", f"{len(totals.ranks):,}", f"up to {steps:,} steps each"),
        ("Recorded", duration(totals.duration), "of all ranks together"),
        ("Known", percent(totals.coverage), "of the time belongs to an activity"),
        ("Computing", percent(totals.useful), "of the time"),
    ]


def section(totals: Totals) -> Section:
    """Return the section of the page: a row a rank, a column an activity, and how much is known."""
    names = totals.activities[:MAX_ACTIVITIES]
    rest = totals.activities[MAX_ACTIVITIES:]
    head = ("Rank", "Steps", "Seconds", *(name[:1].upper() + name[1:] for name in names), *(["Other"] if rest else []))
    rows = []
    for rank in totals.ranks:
        spent = [rank.seconds.get(name, 0.0) for name in names] + (
            [sum(rank.seconds.get(name, 0.0) for name in rest)] if rest else []
        )
        rows.append(
            (
                shorten(rank.name, 40),
                f"{rank.steps:,}",
                duration(sum(rank.seconds.values())),
                *(duration(one) if one else "" for one in spent),
            )
        )
    unknown = [name for name in names if name in UNKNOWN]
    sentences = [
        "Every second of every rank belongs to exactly one activity; each row adds up to the rank's time.",
        f"Known: {percent(totals.coverage)} of the time. report.json has the seconds, under ledger.",
    ]
    if unknown:
        sentences.append(
            "Unseen is time for which nothing was recorded; a step is one of which only the length is known."
        )
    return Section("ledger", "Where every second went", tuple(sentences), (cut_table(head, rows),))
