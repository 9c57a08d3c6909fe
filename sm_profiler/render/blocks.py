"""Building blocks of the page's sections: tables, pictures, and tolerant access to a rule's report object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from markupsafe import Markup

from sm_profiler.formats import event_names
from sm_profiler.formatting import number, shorten
from sm_profiler.render import charts
from sm_profiler.render.charts import Box, ChartPart

MAX_ROWS = 24  # rows of a table, rows of a picture, or sentences of one kind; more are counted
MAX_SHARES = 6  # named shares of a ring
Object = Mapping[str, Any]


@attrs.frozen
class PageTable:
    """Head, rows, and the number of rows left out."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    more: int = 0


@attrs.frozen
class Picture:
    """A drawing with a caption and a legend of (name, colour, value)."""

    drawing: Markup
    caption: str
    legend: tuple[tuple[str, str, str], ...] = ()
    shape: str = "chart"


@attrs.frozen
class Section:
    """One section of the page.

    Attributes:
        missing: explains a section without content.
        fold: shown as one line that opens; it is open if a rule fired.
        not_judged: why the section's rules had nothing to judge.
    """

    key: str
    title: str
    sentences: tuple[str, ...] = ()
    tables: tuple[PageTable, ...] = ()
    pictures: tuple[Picture, ...] = ()
    advice: str = ""
    fired: bool = False
    missing: str = ""
    fold: bool = False
    not_judged: str = ""


def details(rules: Mapping[str, Object], rule: str) -> dict[str, Any]:
    """Return a rule's Details; empty if it has none."""
    found = rules.get(rule, {}).get("Details")
    return dict(found) if isinstance(found, Mapping) else {}


def times_fired(rules: Mapping[str, Object], rule: str) -> int:
    """Return how often a rule was triggered."""
    return int(rules.get(rule, {}).get("RuleTriggered", 0))


def parameter(rules: Mapping[str, Object], rule: str, name: str, default: str) -> str:
    for line in str(rules.get(rule, {}).get("RuleParameters", "")).splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return value
    return default


def by_node(rules: Mapping[str, Object], rule: str) -> dict[str, Mapping[str, Any]]:
    """Return the entries of a rule's Details that are objects."""
    return {
        str(node): result for node, result in details(rules, rule).items() if isinstance(result, Mapping) and result
    }


def not_judged(key: str, title: str, why: object) -> Section:
    """Return the section of a rule that had nothing to judge."""
    reason = str(why).rstrip(".")
    return Section(key, title, missing=f"Not judged: {reason}.", not_judged=reason)


def share_ring(values: Mapping[str, Any], title: str) -> Picture | None:
    """Draw shares as a ring; the smallest beyond MAX_SHARES are summed."""
    pairs = sorted(((str(name), number(value)) for name, value in values.items()), key=lambda pair: -pair[1])
    pairs = [pair for pair in pairs if pair[1] > 0]
    if not pairs:
        return None
    shown, rest = pairs[:MAX_SHARES], sum(value for _, value in pairs[MAX_SHARES:])
    if rest:
        shown.append((f"{len(pairs) - MAX_SHARES} others", rest))
    colours = charts.SHARE_COLOURS
    drawn = [
        ChartPart(readable_phase(name), value, colours[place % len(colours)])
        for place, (name, value) in enumerate(shown)
    ]
    whole = sum(part.value for part in drawn)
    legend = tuple((shorten(part.name, 48), part.colour, f"{100 * part.value / whole:.1f} %") for part in drawn)
    return Picture(charts.donut(drawn, title), title, legend, "donut")


def share_rings(found: Mapping[str, Any], titles: Mapping[str, str]) -> list[Picture]:
    """Draw a ring for each key of a rule's Details that contains shares."""
    rings = [share_ring(found[key], title) for key, title in titles.items() if isinstance(found.get(key), Mapping)]
    return [ring for ring in rings if ring]


def what_ran(found: Mapping[str, Any], title: str) -> list[Picture]:
    """Draw what ran at the moments that a rule picked."""
    kinds = {"phase": "phases", "general": "operations", "CPU": "CPU operators", "GPU": "GPU operators"}
    return share_rings(found, {key: f"{title}: {name}" for key, name in kinds.items()})


def readable_phase(name: str) -> str:
    """Return the readable name of a phase."""
    if name.startswith(f"{event_names.GPU_OPERATORS}-dev:"):
        return f"Operators on GPU {name.rpartition(':')[2]}"
    readable = {
        event_names.STEP_TRAIN: "Training steps",
        event_names.STEP_EVAL: "Evaluation steps",
        event_names.CPU_OPERATORS: "Operators on the CPU",
        "others": "Outside the steps",
    }
    return readable.get(name, name)


def box_plots(rows: Mapping[str, Any], caption: str) -> list[Picture]:
    """Draw box plots of the rows that have quartiles; none if no row has."""
    boxes = [
        Box(str(name), *(number(result.get(key)) for key in ("p25", "p50", "p75", "lower", "upper")))
        for name, result in rows.items()
        if isinstance(result, Mapping) and "p50" in result
    ]
    if not boxes:
        return []
    note = f" (first {MAX_ROWS} of {len(boxes)})" if len(boxes) > MAX_ROWS else ""
    return [Picture(charts.boxes(boxes[:MAX_ROWS], shorten(caption, 80)), shorten(caption, 80) + note)]


def cut_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], limit: int = MAX_ROWS) -> PageTable:
    """Return a table of the first rows; the others are counted."""
    return PageTable(head, tuple(rows)[:limit], max(len(rows) - limit, 0))


def numbers(found: Any) -> list[float]:
    """Return a list of finite numbers; empty for anything but a sequence."""
    return [number(value) for value in found] if isinstance(found, Sequence) and not isinstance(found, str) else []
