"""The ledger of all ranks, on the page and in the terminal."""

from __future__ import annotations

import attrs

from sm_profiler.diagnosis.ledger import UNKNOWN, Totals
from sm_profiler.diagnosis.profile.ledger import PHASE
from sm_profiler.formatting import duration, percent, shorten
from sm_profiler.printable import printable
from sm_profiler.render import charts
from sm_profiler.render.blocks import Picture, Section, cut_table
from sm_profiler.render.charts import ChartPart

MAX_ACTIVITIES = 8  # columns of the table, parts of the bar; the others are summed
MIN_NAMED = 0.0005  # smaller shares are drawn but not in the legend
MAX_NAME = 40
# Activity → key of `COLOURS`, and its letter in a terminal without colours; in the order of a step, as bars show them.
_SHOWN = {
    "waiting for data": ("amber", "W"), "data wait": ("amber", "W"), "making batches": ("bronze", "M"),
    "copies to the device": ("navy", "D"), "forward": ("blue", "F"), "backward": ("sky", "B"), "optimizer": ("teal", "O"),
    "compiled": ("blue", "C"), "compute": ("blue", "C"), "waiting for results": ("pine", "R"),
    "communication": ("teal", "X"), "waiting for other ranks": ("slate", "N"),
}  # fmt: skip
_SHOWN_LAST = {
    "logging": ("sand", "L"), "callbacks": ("olive", "K"), "saving": ("plum", "S"), "compiling": ("steel", "J"),
    "compiling again": ("steel", "A"), "garbage collection": ("brick", "G"), "evaluation": ("violet", "E"),
    "other code": ("rose", "x"), "step": ("grey", "."), "unseen": ("pale", "?"),
}  # fmt: skip
_DECLARED = (("moss", "Y"), ("mint", "Z"), ("stone", "V"), ("sand", "U"), ("olive", "T"))  # in turn, for other names
_ON_DEVICE = frozenset({"forward", "backward", "optimizer"})


@attrs.frozen
class Share:
    """An activity's share of the time of all ranks.

    Attributes:
        name: the activity, or the name of the script's phase, printable.
        share: share of the time, 0 to 1.
        seconds: seconds a step.
        colour: a key of `COLOURS`.
        letter: its letter in a terminal without colours.
    """

    name: str
    share: float
    seconds: float
    colour: str
    letter: str

    @property
    def is_named(self) -> bool:
        """True if the share belongs in the legend."""
        return self.share >= MIN_NAMED

    @property
    def label(self) -> str:
        """The name at the start of an entry."""
        return self.name[:1].upper() + self.name[1:]


def shares(totals: Totals | None, *, on_device: bool = False) -> list[Share]:
    """Return the activities of all ranks in the order of a step; of many, the smallest are summed.

    Args:
        totals: the ledger, or None without one.
        on_device: a GPU timed the phases of the steps; their names state it.
    """
    if totals is None:
        return []
    steps = sum(rank.steps for rank in totals.ranks) or 1
    names, count = totals.activities[:MAX_ACTIVITIES], len(totals.activities)
    declared = [name for name in names if name not in _SHOWN and name not in _SHOWN_LAST]
    shown = {**_SHOWN, **{name: _DECLARED[at % len(_DECLARED)] for at, name in enumerate(declared)}, **_SHOWN_LAST}

    def share(name: str, look: tuple[str, str], *activities: str) -> Share:
        part = totals.share(*activities)
        return Share(name, part, part * totals.duration / steps, *look)

    found = [
        share(_name(name) + (" (GPU)" if on_device and name in _ON_DEVICE else ""), look, name)
        for name, look in shown.items()
        if name in names
    ]
    if count > len(names):
        found.append(share(f"{count - len(names)} others", ("grey", "-"), *totals.activities[MAX_ACTIVITIES:]))
    return found


def _name(activity: str) -> str:
    return shorten(printable(activity.removeprefix(PHASE)), MAX_NAME)


def picture(totals: Totals, title: str, *, on_device: bool = False) -> Picture:
    """Draw the activities of all ranks as a bar."""
    found = shares(totals, on_device=on_device)
    drawn = [ChartPart(each.label, each.share, each.colour, f"{duration(each.seconds)} per step") for each in found]
    legend = tuple(
        (each.label, each.colour, f"{percent(each.share)}|{duration(each.seconds)} per step")
        for each in found
        if each.is_named
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


def section(totals: Totals, left_out: str | None = None) -> Section:
    """Return the section of the page: a row a rank, a column an activity, how much is known, and what is left out."""
    names = totals.activities[:MAX_ACTIVITIES]
    rest = totals.activities[MAX_ACTIVITIES:]
    head = (
        "Rank",
        "Steps",
        "Seconds",
        *(label[:1].upper() + label[1:] for label in map(_name, names)),
        *(["Other"] if rest else []),
    )
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
                *(duration(share) if share else "" for share in spent),
            )
        )
    unknown = [name for name in names if name in UNKNOWN]
    sentences = [
        "Every second of every rank belongs to exactly one activity; each row adds up to the rank's time.",
        f"Known: {percent(totals.coverage)} of the time. report.json has the seconds, under ledger.",
    ]
    if left_out:
        sentences.append(left_out)
    if unknown:
        sentences.append(
            "Unseen is time for which nothing was recorded; a step is one of which only the length is known."
        )
    return Section("ledger", "Where every second went", tuple(sentences), (cut_table(head, rows),))
