"""The parts that the training loop's time is divided into.

A new part is one entry in `PARTS`. A phase that the hook records needs nothing else; the time of a derived part is
computed in `job_metrics.measure_rank`.  Parts inside others are found by `Covered`, a union of time spans.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, auto
from functools import cache
from typing import Any

import attrs
import numpy as np

from sm_profiler.formats import event_names
from sm_profiler.formats.columns import Floats, Mask


@attrs.frozen(eq=False)
class PartTable:
    """A matrix of floats, shape (rows, width); `table[rows, column]` reads one column or value of it.

    Attributes:
        count: number of rows.
        width: number of columns.
        columns: number of a column → its values; the others are zero.
    """

    count: int
    width: int
    columns: Mapping[int, Floats]

    @classmethod
    def of(cls, values: Any) -> PartTable:
        """Return a matrix as a table; a table is returned as it is."""
        if isinstance(values, PartTable):
            return values
        found = {int(number): np.ascontiguousarray(values[:, number]) for number in np.flatnonzero(values.any(axis=0))}
        return cls(len(values), values.shape[1], found)

    @classmethod
    def concat(cls, tables: Iterable[PartTable], further: Iterable[int] = ()) -> PartTable:
        """Return the rows of all tables, in new arrays; `further` columns exist in the result although they are zero."""
        tables = list(tables)
        numbers = sorted({number for table in tables for number in table.columns} | set(further))
        count, width = sum(table.count for table in tables), tables[0].width
        return cls(count, width, {number: np.concatenate([table[:, number] for table in tables]) for number in numbers})

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, key: Any) -> Any:
        """Return rows as a table, or the values of one column."""
        if not isinstance(key, tuple):
            return PartTable(
                len(np.arange(self.count)[key]),
                self.width,
                {number: values[key] for number, values in self.columns.items()},
            )
        rows, number = key
        found = self.columns.get(range(self.width)[int(number)])
        return np.zeros(self.count)[rows] if found is None else found[rows]

    def with_columns(self, columns: Mapping[int, Floats]) -> PartTable:
        """Return the table with other values in some columns."""
        return attrs.evolve(self, columns={**self.columns, **columns})

    def add(self, row: int, values: Floats) -> None:
        """Add one value to each column of a row, in place; the columns of all values that are not zero must exist."""
        for number in np.flatnonzero(values):
            self.columns[int(number)][row] += values[number]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:  # numpy's signature
        """Return the whole matrix."""
        del copy
        whole = np.zeros((self.count, self.width))
        for number, values in self.columns.items():
            whole[:, number] = values
        return whole if dtype is None else whole.astype(dtype)


class Kind(Enum):
    """Origin of the time of a part."""

    WAIT = auto()  # recorded before the step it belongs to
    PHASE = auto()  # recorded inside a step
    DECLARED = auto()  # phases that the script declares, with names of its own
    DERIVED = auto()  # computed from the other parts


@attrs.frozen
class Part:
    """A part of the training loop.

    Attributes:
        key: name in report.json and compare.json.
        label: name in charts and tables.
        during: where a step spends its time, for sentences such as “3 ms a step in the forward pass”.
        kind: origin of its time.
        events: regular expression that matches its events' phase completely; "" for derived parts.
        device_event: phase of the same part as a GPU ran it; "" if it is not recorded.
        per_iteration: every iteration has this part, so it is compared between iterations, ranks and runs.
    """

    key: str
    label: str
    during: str
    kind: Kind = Kind.DERIVED
    events: str = ""
    device_event: str = ""
    per_iteration: bool = True

    def records(self, phase: str) -> bool:
        """Return whether events of this phase belong to the part."""
        return bool(self.events) and re.fullmatch(self.events, phase, re.DOTALL) is not None


# In the order of a step, which is the order of charts and of report.json.
PARTS: tuple[Part, ...] = (
    Part("wait", "Waiting for data", "waiting for data", Kind.WAIT, event_names.DATALOADER_WAIT),
    Part(
        "forward", "Forward", "in the forward pass", Kind.PHASE, event_names.FORWARD,
        event_names.DEVICE_FORWARD,
    ),
    Part(
        "backward", "Backward", "in the backward pass", Kind.PHASE, "Backward(?!.*SubModule).*",
        event_names.DEVICE_BACKWARD,
    ),
    Part(
        "optimizer", "Optimizer", "in the optimizer", Kind.PHASE, event_names.OPTIMIZER,
        event_names.DEVICE_OPTIMIZER,
    ),
    Part(
        "compiled", "Compiled step", "in its compiled function", Kind.PHASE, event_names.COMPILED_STEP,
    ),
    Part("declared", "Your own phases", "in phases of its own", Kind.DECLARED),
    Part("between", "Between phases", "between its phases", per_iteration=False),
    Part("evaluation", "Evaluation", "in evaluation", per_iteration=False),
    Part("gc", "Garbage collection", "in garbage collection", per_iteration=False),
    Part("outside", "Outside the phases", "outside the phases"),
)  # fmt: skip

DECLARED = "declared"  # key of the script's own phases
UNKNOWN = "unknown"  # in place of a key: the part was not recorded
WHOLE = "length"  # in place of a key: the whole iteration
MEETINGS = ("backward", "optimizer", "outside")  # in which ranks wait for each other, the most usual first


@cache
def phases() -> tuple[Part, ...]:
    """Return the parts that are phases of a step."""
    return tuple(part for part in PARTS if part.kind is Kind.PHASE)


@cache
def recorded() -> tuple[Part, ...]:
    """Return the parts that have events of their own."""
    return tuple(part for part in PARTS if part.kind is not Kind.DERIVED)


@cache
def iteration_keys() -> tuple[str, ...]:
    """Return the keys of the parts that every iteration has."""
    return tuple(part.key for part in PARTS if part.per_iteration)


def label(key: str) -> str:
    """Return the name of a part, or of the whole step."""
    return "Step" if key == WHOLE else _part(key).label


def during(key: str) -> str:
    """Return where a step spends its time, for a sentence."""
    return "in a part that was not recorded" if key == UNKNOWN else _part(key).during


def during_all(keys: Sequence[str]) -> str:
    """Return where a step spends its time, for a sentence, if several parts have a share in it."""
    each = [during(key) for key in keys]
    return each[0] if len(each) == 1 else f"{', '.join(each[:-1])} and {each[-1]}"


def _part(key: str) -> Part:
    return next(part for part in PARTS if part.key == key)


@attrs.frozen(eq=False)
class Covered:
    """The union of spans.

    Attributes:
        edges: start, end, start, end, … of the disjoint spans, ascending.
        before: time covered before each edge.
    """

    edges: Floats
    before: Floats

    @classmethod
    def by(cls, start: Floats, end: Floats) -> Covered:
        """Return the union of spans, given in any order."""
        if not len(start):
            return cls(np.zeros(1), np.zeros(1))
        order = np.argsort(start, kind="stable")
        start, latest = start[order], np.maximum.accumulate(end[order])
        opens = np.concatenate([[True], start[1:] > latest[:-1]])
        begins = start[opens]
        ends = latest[np.append(np.flatnonzero(opens)[1:] - 1, len(latest) - 1)]
        edges = np.column_stack([begins, ends]).ravel()
        lengths = np.where(np.arange(len(edges)) % 2 == 1, edges - np.roll(edges, 1), 0.0)
        return cls(edges, np.cumsum(lengths))

    def within(self, start: Floats | float, end: Floats | float) -> Floats:
        """Return how much of each span is covered."""
        covered = np.interp(end, self.edges, self.before) - np.interp(start, self.edges, self.before)
        return np.asarray(np.maximum(covered, 0.0))


def not_covered_before(start: Floats, end: Floats) -> Floats:
    """Return from where on each span is not covered by earlier ones, at most its end; spans are ordered by their start."""
    latest = np.maximum.accumulate(end)
    before = np.concatenate([[-np.inf], latest[:-1]])[: len(end)]
    return np.asarray(np.minimum(np.maximum(start, before), np.maximum(end, start)))


def without_inner(start: Floats, end: Floats) -> Floats:
    """Return the duration of each span without the spans nested in it; spans are ordered by their start."""
    own = np.asarray(end - start, np.float64).copy()
    open_spans: list[int] = []
    for index in sorted(range(len(start)), key=lambda one: (start[one], -end[one])):
        while open_spans and end[open_spans[-1]] <= start[index]:
            open_spans.pop()
        if open_spans:
            own[open_spans[-1]] -= max(min(end[index], end[open_spans[-1]]) - start[index], 0.0)
        open_spans.append(index)
    return np.maximum(own, 0.0)


def contains_any(start: Floats, end: Floats, inner: Sequence[Floats]) -> Mask:
    """Return for each span whether it contains one of the inner spans, given as starts and ends, completely."""
    inner_start, inner_end = inner
    if not len(inner_start):
        return np.zeros(len(start), np.bool_)
    first = np.searchsorted(inner_start, start, side="left")
    known = first < len(inner_start)
    return np.asarray(known & (inner_end[np.minimum(first, len(inner_start) - 1)] <= end))
