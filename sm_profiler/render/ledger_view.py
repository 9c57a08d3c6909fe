"""The ledger of all ranks and the parts of the loop, on the page and in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.ledger import UNKNOWN, Totals
from sm_profiler.diagnosis.profile.case import NO_LOADER, declared_shares, waits_recorded
from sm_profiler.diagnosis.profile.ledger import EVALUATION, OUTSIDE
from sm_profiler.formatting import duration, percent, shorten
from sm_profiler.metrics import parts
from sm_profiler.metrics.job_metrics import Rank
from sm_profiler.printable import printable
from sm_profiler.render import charts
from sm_profiler.render.blocks import Picture, Section, cut_table
from sm_profiler.render.charts import ChartPart

MAX_ACTIVITIES = 8  # columns of the table, parts of the bar; the others are summed
MIN_NAMED = 0.0005  # smaller shares are drawn but not in the legend
# Activity → key of the part of the loop whose colour it has.
_COLOURS = {
    "forward": "blue", "backward": "sky", "optimizer": "teal", "compiled": "blue", "compute": "blue", "waiting for data": "amber",
    "data wait": "amber", "evaluation": "violet", "garbage collection": "moss", "communication": "teal",
    "waiting for other ranks": "rose", "unseen": "pale", "step": "grey", "other code": "rose", "saving": "plum", "logging": "sand",
    "callbacks": "olive", "compiling": "steel", "compiling again": "steel",
}  # fmt: skip
_SPARE = ("moss", "violet", "grey", "amber", "rose")

MAX_DECLARED = 5  # phases of the script that get a slice; the others share the last
MAX_NAME = 40
WHOLE_STEPS = "Steps"  # of which no phases were recorded
NOT_RECORDED = "not recorded"


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


def section(totals: Totals, left_out: str | None = None) -> Section:
    """Return the section of the page: a row a rank, a column an activity, how much is known, and what is left out."""
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


def _evaluated(loops: Sequence[Rank], totals: Totals) -> float | None:
    """Return the share of evaluation in the loops by the ledger, averaged over ranks; None if it lacks any of them."""
    known = {rank.name: rank.seconds for rank in totals.ranks}
    found = [known[rank.name] for rank in loops if rank.name in known]
    if len(found) < len(loops):
        return None
    return sum(seconds.get(EVALUATION, 0.0) / max(sum(seconds.values()), 1e-9) for seconds in found) / len(found)


@attrs.frozen
class Slice:
    """A part of the loop, averaged over ranks.

    Attributes:
        label: its name, marked if a GPU's times are shown.
        share: share of the loop, 0 to 1.
        value: the share as text, or NOT_RECORDED.
        note: time a step, or why it was not recorded.
    """

    part: parts.Part
    label: str
    share: float
    value: str
    note: str

    @property
    def is_named(self) -> bool:
        """True if the slice belongs in the legend: large enough, or missing."""
        return self.share >= MIN_NAMED or self.value == NOT_RECORDED


def loop_slices(ranks: Sequence[Rank], *, watched: bool = False, totals: Totals | None = None) -> list[Slice]:
    """Return the slices in the order of a step; none without a loop. Phases that the script declared have names.

    Args:
        watched: a hook was there that records each wait for a loader.
        totals: the ledger of these processes and others, for evaluation: what it has under other names, such as files that
            are saved meanwhile, is outside the phases.
    """
    loops = [rank for rank in ranks if rank.loop > 0]
    if not loops:
        return []
    steps = sum(rank.train_steps - rank.left_out for rank in loops) or 1
    whole = sum(rank.loop for rank in loops)
    slices, on_device = [], all(rank.on_device for rank in loops)
    of_steps = [part.key for part in parts.PARTS if part.kind in (parts.Kind.PHASE, parts.Kind.DECLARED)]
    has_phases = any(rank.share(key) > 0 for rank in loops for key in of_steps)

    def note(share: float) -> str:
        return f"{duration(share * whole / steps)} per step"

    evaluated = _evaluated(loops, totals) if totals is not None else None
    for part in parts.PARTS:
        share = sum(rank.share(part.key) for rank in loops) / len(loops)
        if evaluated is not None and part.key == EVALUATION:
            rest, share = share - evaluated, evaluated
        elif evaluated is not None and part.key == OUTSIDE:
            share = max(share + rest, 0.0)
        if part.kind is parts.Kind.DECLARED:
            named = declared_shares(loops)
            slices += [
                Slice(parts.named(part, place), shorten(printable(name), MAX_NAME), share, percent(share), note(share))
                for place, (name, share) in enumerate(named[:MAX_DECLARED])
            ]
            share -= sum(share for _, share in named[:MAX_DECLARED])
            if share < MIN_NAMED:
                continue
        value, text = percent(share), note(share)
        if part.key == "wait" and not waits_recorded(loops) and share < limits.HEALTHY:
            value = NOT_RECORDED
            text = NO_LOADER if watched else "no dataloader window either"
            text = f"{percent(share)} in the dataloader window" if share >= MIN_NAMED else text
        gpu = " (GPU)" if on_device and part.kind is parts.Kind.PHASE else ""
        label = WHOLE_STEPS if part.key == "between" and not has_phases else part.label
        slices.append(Slice(part, label + gpu, share, value, text))
    return slices
