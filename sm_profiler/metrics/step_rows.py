"""Rows of steps, and the columns of their times."""

from __future__ import annotations

from functools import cache
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats import event_names
from sm_profiler.formats.columns import Category, EventColumns, Floats, Ints
from sm_profiler.metrics import parts
from sm_profiler.metrics.parts import PartTable

MODES = ("TRAIN", "EVAL", "PREDICT", "GLOBAL")
TRAIN, EVAL, PREDICT = (MODES.index(name) for name in ("TRAIN", "EVAL", "PREDICT"))  # as in StepRows.mode
# columns beside the parts of the loop: of garbage collections; of the profiler's own work in an iteration, and inside
# its step; of the script's own phases inside the step
GC, OWN, OWN_IN_STEP, DECLARED_IN_STEP = "gc", "own", "own in step", "declared in step"
LOADER, COMMUNICATION = "loader", "communication"
QUEUED = "queued"  # waiting for earlier calls of compiled functions, included in the compiled step
RESULTS = "results"  # waiting for results of compiled functions, included in the compiled step
_COLLECTIVES = ("nccl", "allreduce", "all_reduce", "allgather", "reducescatter", "reduce_scatter", "broadcast")

STEP, OVERHEAD, OWN_WORK, DECLARED, IGNORED = 100, 101, 102, 103, -1
_BEGINNINGS = {event_names.STEP: STEP, event_names.OVERHEAD: OVERHEAD, event_names.PROFILING: OWN_WORK}
_OTHER_COLUMNS = {
    event_names.GARBAGE_COLLECTION: GC, event_names.DATALOADER_ITER: LOADER,
    event_names.RESULTS: RESULTS, event_names.QUEUED: QUEUED,
}  # fmt: skip


@cache
def columns() -> tuple[str, ...]:
    """Return the names of the columns of `StepRows.parts`; the phases that a GPU ran come last."""
    on_device = tuple(_on_device(part.key) for part in parts.phases())
    return (
        *(part.key for part in parts.recorded()),
        GC,
        OWN,
        OWN_IN_STEP,
        DECLARED_IN_STEP,
        LOADER,
        RESULTS,
        QUEUED,
        COMMUNICATION,
        *on_device,
    )


@cache
def column(key: str, *, on_device: bool = False) -> int:
    """Return the number of a column of `StepRows.parts`: a part, GC, LOADER or COMMUNICATION."""
    return columns().index(_on_device(key) if on_device else key)


def _on_device(key: str) -> str:
    return f"{key} on device"


@attrs.frozen(eq=False)
class StepRows:
    """Steps of one process in time order; all times in microseconds.

    Attributes:
        start: start of each step, since the epoch.
        duration: duration of the Step event.
        number: number of the step within its mode, -1 if unknown.
        mode: index into MODES.
        parts: shape (steps, columns): time in each of `columns()`. Waits and loading belong to the step whose batch they
            delivered.
        gc_in_wait: garbage collections inside the wait.
    """

    start: Floats
    duration: Floats
    number: Ints
    mode: NDArray[np.int8]
    parts: PartTable
    gc_in_wait: Floats

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, rows: Any) -> StepRows:
        return StepRows(*(getattr(self, field.name)[rows] for field in attrs.fields(StepRows)))

    @classmethod
    def joined(cls, first: StepRows, second: StepRows) -> StepRows:
        """Return the steps of both, in this order."""

        def both(name: str) -> Any:
            values = [getattr(part, name) for part in (first, second)]
            return PartTable.concat(map(PartTable.of, values)) if name == "parts" else np.concatenate(values)

        return cls(*(both(field.name) for field in attrs.fields(cls)))

    @property
    def end(self) -> Floats:
        """End of each Step event."""
        return self.start + self.duration

    def seconds(self, key: str, *, on_device: bool = False) -> Floats:
        """Return the time of each step in one column, in seconds."""
        return np.asarray(self.parts[:, column(key, on_device=on_device)] / 1e6)


def classify(events: EventColumns) -> NDArray[np.int8]:
    """Return for each event the column of its part, STEP, OVERHEAD, or IGNORED; each text is classified once."""
    by_phase = np.asarray([_kind_of_phase(text) for text in events.phase.values] or [IGNORED], np.int8)
    by_name = np.asarray([_kind_of_name(text) for text in events.name.values] or [IGNORED], np.int8)
    kinds = by_phase[events.phase.codes]
    named = by_name[events.name.codes]
    kinds = np.where(kinds == IGNORED, named, kinds).astype(np.int8)
    open_rows = np.flatnonzero((kinds == IGNORED) | (kinds == OWN_WORK) | (kinds == column(GC)))
    kinds[open_rows] = _by_arguments(events[open_rows], kinds[open_rows])
    return kinds


def _by_arguments(events: EventColumns, kinds: NDArray[np.int8]) -> NDArray[np.int8]:
    """Return the kinds of events that depend on their arguments, as the hook writes them.

    A mark is searched in the text of the JSON, which is faster than parsing it: values escape their quotation marks, so
    that none contains a mark.
    """
    codes, each = np.unique(events.args.codes, return_inverse=True)
    texts = [events.args.values[code].replace(": ", ":") for code in codes]
    stall, own, declared = (
        np.asarray([mark in text for text in texts], np.bool_)[each]
        for mark in ('"kind":"stall"', '"own":true', '"declared":true')
    )
    kinds = np.where((kinds == OWN_WORK) & ~stall, IGNORED, kinds)
    kinds = np.where((kinds == column(GC)) & own, OWN_WORK, kinds)
    return np.where((kinds == IGNORED) & declared, DECLARED, kinds).astype(np.int8)


def _kind_of_phase(phase: str) -> int:
    for part in parts.recorded():
        if part.records(phase):
            return column(part.key)
        if phase and phase == part.device_event:
            return column(part.key, on_device=True)
    if phase in _OTHER_COLUMNS:
        return column(_OTHER_COLUMNS[phase])
    for start, kind in _BEGINNINGS.items():
        if phase.startswith(start):
            return kind
    return column(COMMUNICATION) if phase.lower().startswith(event_names.NCCL_MANAGER.lower()) else IGNORED


def _kind_of_name(name: str) -> int:
    if name.startswith(event_names.STEP):
        return STEP
    if name.endswith(event_names.TENSORFLOW_GET_NEXT):
        return column(LOADER)
    low = name.lower()
    return column(COMMUNICATION) if any(word in low for word in _COLLECTIVES) else IGNORED


def modes_of(names: Category) -> NDArray[np.int8]:
    """Return the mode of each step by its name, as an index into MODES."""

    def of(text: str) -> int:
        mode = text.partition(f"{event_names.STEP}.")[2]
        return MODES.index(mode) if mode in MODES else 0

    return np.asarray([of(text) for text in names.values] or [0], np.int8)[names.codes]
