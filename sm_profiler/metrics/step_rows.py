"""Rows of steps, and the columns of their times."""

from __future__ import annotations

from functools import cache
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats.columns import Floats, Ints
from sm_profiler.metrics import parts
from sm_profiler.metrics.part_table import PartTable

MODES = ("TRAIN", "EVAL", "PREDICT", "GLOBAL")
TRAIN, EVAL = MODES.index("TRAIN"), MODES.index("EVAL")  # as in StepRows.mode
# columns beside the parts of the loop: of garbage collections; of the profiler's own work in an iteration, and inside
# its step; of the script's own phases inside the step
GC, OWN, OWN_IN_STEP, DECLARED_IN_STEP = "gc", "own", "own in step", "declared in step"
LOADER, COMMUNICATION = "loader", "communication"
QUEUED = "queued"  # waiting for earlier calls of compiled functions, included in the compiled step
RESULTS = "results"  # waiting for results of compiled functions, included in the compiled step


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
