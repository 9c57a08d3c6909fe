"""The tables that are computed from the events: steps, and sampled Python stacks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np

from sm_profiler.formats import layout
from sm_profiler.formats.columns import EventColumns
from sm_profiler.formats.event_names import SAMPLES
from sm_profiler.metrics.sample_fold import decode_stacks
from sm_profiler.metrics.step_fold import GC, MODES, StepFold, column, each_process
from sm_profiler.source.parquet import paths
from sm_profiler.source.parquet.schema import SCHEMAS


@attrs.frozen(eq=False)
class _Window:
    """Events as the folds read them."""

    start_us: int
    new_events: EventColumns


class DerivedTables:
    """Steps and stacks of one part."""

    def __init__(self) -> None:
        self._steps = StepFold()
        self._samples: list[dict[str, Any]] = []
        self._count = 0

    def add(self, events: Any) -> None:
        """Add whole files, if there are any with events."""
        if not isinstance(events, EventColumns):
            return
        self._count += 1
        own = events[events.kind.mask(layout.PYTHON_TIMELINE)]
        self._steps.update(_Window(self._count, own))
        self._samples.extend(_stacks(own))

    def tables(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield each table that has rows, as columns."""
        found = [(name, rows) for name, rows in each_process(self._steps.result()) if len(rows)]
        if found:
            together = [rows for _, rows in found]
            modes = [MODES[mode] for rows in together for mode in rows.mode]
            columns = {
                "process": [name for name, rows in found for _ in range(len(rows))],
                "mode": modes,
                "step": np.concatenate([rows.number for rows in together]),
                "start_us": np.concatenate([rows.start for rows in together]),
                "duration_us": np.concatenate([rows.duration for rows in together]),
            }
            for part in ("wait", "forward", "backward", "optimizer", "declared", GC):
                columns[f"{part}_us"] = np.concatenate([rows.parts[:, column(part)] for rows in together])
            yield paths.STEPS, columns
        if self._samples:
            names = SCHEMAS[paths.SAMPLES].names
            yield paths.SAMPLES, {name: [one[name] for one in self._samples] for name in names}


def _stacks(events: EventColumns) -> Iterator[dict[str, Any]]:
    rows = events[events.phase.mask(SAMPLES)]
    for node, start_us, code in zip(rows.node.codes, rows.start_us, rows.args.codes, strict=True):
        for stack in decode_stacks(rows.args.values[code]):
            yield {
                "process": rows.node.values[node],
                "start_us": float(start_us),
                "phase": stack.phase,
                "long_step": stack.long,
                "stack": ";".join(f"{place.function} ({place.file}:{place.line})" for place in stack.places),
                "library": stack.leaf,
                "seconds": stack.microseconds / 1e6,
                "samples": stack.count,
            }
