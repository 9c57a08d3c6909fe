"""Kinds of events: the part of the loop that each belongs to."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats import event_names
from sm_profiler.formats.columns import Category, EventColumns
from sm_profiler.metrics import parts
from sm_profiler.metrics.step_rows import COMMUNICATION, GC, LOADER, MODES, QUEUED, RESULTS, column

_COLLECTIVES = ("nccl", "allreduce", "all_reduce", "allgather", "reducescatter", "reduce_scatter", "broadcast")

STEP, OVERHEAD, OWN_WORK, DECLARED, IGNORED = 100, 101, 102, 103, -1
_BEGINNINGS = {event_names.STEP: STEP, event_names.OVERHEAD: OVERHEAD, event_names.PROFILING: OWN_WORK}
_OTHER_COLUMNS = {
    event_names.GARBAGE_COLLECTION: GC, event_names.DATALOADER_ITER: LOADER,
    event_names.RESULTS: RESULTS, event_names.QUEUED: QUEUED,
}  # fmt: skip


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
    """Return the kinds of events that depend on their arguments, as the hook writes them."""
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
