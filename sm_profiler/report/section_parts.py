"""What sections are made of: tables, pictures, and tolerant ways to read a rule's report object."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from markupsafe import Markup

from sm_profiler.formats import event_names
from sm_profiler.report import charts
from sm_profiler.report.charts import Box, Part
from sm_profiler.report.svg import shorten

COLOURS = ("forward", "backward", "optimizer", "wait", "evaluation", "outside", "between")
MAX_ROWS = 24  # rows of a table of data, pictures of one kind: more are counted, not shown
Object = Mapping[str, Any]


@attrs.frozen
class Table:
    """Head, rows, and how many rows were left out."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    more: int = 0


@attrs.frozen
class Picture:
    """A drawing with a caption, and its legend: (name, colour, value)."""

    drawing: Markup
    caption: str
    legend: tuple[tuple[str, str, str], ...] = ()
    shape: str = "chart"


@attrs.frozen
class Section:
    """One section: sentences, tables, pictures, what to do."""

    key: str
    title: str
    sentences: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()
    advice: str = ""
    fired: bool = False
    missing: str = ""


def details(rules: Mapping[str, Object], rule: str) -> dict[str, Any]:
    """A rule's Details; empty where there are none."""
    found = rules.get(rule, {}).get("Details")
    return dict(found) if isinstance(found, Mapping) else {}


def times_fired(rules: Mapping[str, Object], rule: str) -> int:
    """How often a rule was triggered."""
    return int(rules.get(rule, {}).get("RuleTriggered", 0))


def not_judged(key: str, title: str, why: object) -> Section:
    """A section of a rule that says why it could not judge."""
    return Section(key, title, missing=f"Not judged: {str(why).rstrip('.')}.")


def moment(seconds: float) -> str:
    """A point in time, in UTC."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
    except (OverflowError, OSError, ValueError):
        return "unknown"


def shares(values: Mapping[str, Any], title: str) -> Picture | None:
    """A ring of shares with its legend; small ones beyond the sixth are summed up."""
    pairs = sorted(((str(name), number(value)) for name, value in values.items()), key=lambda pair: -pair[1])
    pairs = [pair for pair in pairs if pair[1] > 0]
    if not pairs:
        return None
    shown, rest = pairs[:6], sum(value for _, value in pairs[6:])
    if rest:
        shown.append((f"{len(pairs) - 6} others", rest))
    parts = [Part(readable(name), value, COLOURS[number % len(COLOURS)]) for number, (name, value) in enumerate(shown)]
    whole = sum(part.value for part in parts)
    legend = tuple((shorten(part.name, 48), part.colour, f"{100 * part.value / whole:.1f} %") for part in parts)
    return Picture(charts.donut(parts, title), title, legend, "donut")


def readable(name: str) -> str:
    """A phase's name as people say it."""
    names = {
        event_names.STEP_TRAIN: "Training steps",
        event_names.STEP_EVAL: "Evaluation steps",
        "others": "Outside the steps",
        event_names.CPU_OPERATORS: "Operators on the CPU",
    }
    if name.startswith(event_names.GPU_OPERATORS):
        return f"Operators on GPU {name.rpartition(':')[2]}"
    return names.get(name, name)


def number(value: Any) -> float:
    """A finite number, whatever stands there; 0 for what is none."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        return 0.0
    return found if found == found and abs(found) != float("inf") else 0.0  # noqa: PLR0124 - NaN differs from itself


def what_ran(found: Mapping[str, Any], title: str) -> list[Picture]:
    """Rings of what ran at the moments that a rule picked out."""
    kinds = {"phase": "phases", "general": "operations", "CPU": "CPU operators", "GPU": "GPU operators"}
    pictures = [
        shares(found[key], f"{title}: {name}") for key, name in kinds.items() if isinstance(found.get(key), Mapping)
    ]
    return [picture for picture in pictures if picture]


def box_picture(rows: Mapping[str, Any], caption: str) -> list[Picture]:
    """A box plot of the rows that have quartiles; none, none."""
    made = [
        Box(str(name), *(number(one.get(key)) for key in ("p25", "p50", "p75", "lower", "upper")))
        for name, one in rows.items() if isinstance(one, Mapping) and "p50" in one
    ]  # fmt: skip
    if not made:
        return []
    note = f" (first {MAX_ROWS} of {len(made)})" if len(made) > MAX_ROWS else ""
    return [Picture(charts.boxes(made[:MAX_ROWS], shorten(caption, 80)), shorten(caption, 80) + note)]


def step_entries(found: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """step_details is node → entry in the service's form, node → phase → entry in ours."""
    flat: list[tuple[str, Mapping[str, Any]]] = []
    for node, one in (found or {}).items():
        if not isinstance(one, Mapping):
            continue
        if "step_stats" in one:
            flat.append((node, one))
        else:
            flat += [(node, inner) for inner in one.values() if isinstance(inner, Mapping) and "step_stats" in inner]
    return flat


def parameter(rules: Mapping[str, Object], rule: str, name: str, default: str) -> str:
    """A parameter that a rule ran with."""
    for line in str(rules.get(rule, {}).get("RuleParameters", "")).splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return value
    return default


def cut_table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], limit: int = MAX_ROWS) -> Table:
    """A table of the first rows; the others are counted."""
    return Table(head, tuple(tuple(rows)[:limit]), max(len(rows) - limit, 0))


def numbers(found: Any) -> list[float]:
    """A list of finite numbers, whatever stands there."""
    return [number(value) for value in found] if isinstance(found, Sequence) and not isinstance(found, str) else []


def spoken(value: Any) -> str:
    """Seconds for a table: in ms below a second."""
    found = number(value)
    return f"{found * 1e3:.4g} ms" if found < 1 else f"{found:.4g} s"


def plain(value: Any) -> str:
    """A number for a table: at most two decimals."""
    found = number(value)
    return f"{found:,.2f}".rstrip("0").rstrip(".") if found else "0"


def natural(name: str) -> tuple[object, ...]:
    """Sorts algo-10 behind algo-2."""
    head, _, tail = str(name).rpartition("-")
    return (head, int(tail)) if tail.isdigit() else (str(name), 0)
