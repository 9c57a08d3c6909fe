"""Steps that the profiler slowed down: a report judges from the others, if they suffice.

The steps of a window are slower, and so are those beside which its results are written: writing competes for the
interpreter, on a busy machine for seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from sm_profiler.formats.columns import Floats, Ints, Mask
from sm_profiler.formatting import number
from sm_profiler.metrics import thresholds
from sm_profiler.metrics.record_fold import Record
from sm_profiler.metrics.step_fold import TRAIN, StepRows, column


@attrs.frozen(eq=False)
class Kept:
    """The steps of a process that are judged.

    Attributes:
        rows: the steps.
        index: number of each, counted over all training steps of the process.
        breaks: rows before which steps were left out.
        left_out: training steps that were left out.
        stretches: start and end of each stretch that was left out, seconds since the epoch.
    """

    rows: StepRows
    index: Ints
    breaks: tuple[int, ...] = ()
    left_out: int = 0
    stretches: tuple[tuple[float, float], ...] = ()

    @property
    def seconds(self) -> float:
        """Length of the stretches that were left out."""
        return sum(end - start for start, end in self.stretches)


@attrs.frozen
class Disturbed:
    """Spans in which the profiler may have slowed steps, seconds since the epoch.

    Attributes:
        windows: windows that made steps noticeably longer.
        beside: other work of the profiler, on another thread.
    """

    windows: Sequence[tuple[float, float]] = ()
    beside: Sequence[tuple[float, float]] = ()


UNDISTURBED = Disturbed()


def disturbed_spans(records: Sequence[Record]) -> Disturbed:
    """Return the spans in which the profiler disturbed a process."""
    windows = [record for record in records if record.args.get("kind") == "window"]
    return Disturbed(
        [
            (record.start, record.end)
            for record in windows
            if record.args.get("slower") is None or number(record.args.get("slower")) >= thresholds.SLOWED
        ],
        [(record.start, record.end) for record in records if record.args.get("kind") == "background"],
    )


def keep_undisturbed(rows: StepRows, spans: Disturbed, loop_us: tuple[float, float]) -> Kept:
    """Leave out the steps that the profiler slowed, unless too few training steps would remain."""
    train = rows.mode == TRAIN
    index = np.cumsum(train) - 1
    slow = np.zeros(len(rows), np.bool_)
    for start, end in spans.windows:
        slow |= (rows.start >= start * 1e6) & (rows.start < end * 1e6)
    slow |= _competed(rows, spans.beside, train & ~slow)
    if not slow.any() or np.count_nonzero(train & ~slow) <= thresholds.MIN_STEPS:
        return Kept(rows, index)
    keep = ~slow
    kept = StepRows(*(getattr(rows, field.name)[keep] for field in attrs.fields(StepRows)))
    after_gap = np.flatnonzero(np.diff(np.flatnonzero(keep), prepend=-1) > 1)
    return Kept(
        kept,
        index[keep],
        tuple(int(row) for row in after_gap if row),
        int(np.count_nonzero(train & slow)),
        _gaps(rows, kept, keep, loop_us),
    )


def _competed(rows: StepRows, spans: Sequence[tuple[float, float]], others: Mask) -> Mask:
    """Return the steps that work beside them made longer.

    Work that takes a small part of a step hardly changes it, and leaving it out would leave out the longest steps first.
    """
    starts: Floats = rows.start - rows.parts[:, column("wait")]
    ends = np.append(starts[1:], rows.end[-1:])
    beside = np.zeros(len(rows))
    for start, end in spans:
        first, last = np.searchsorted(ends, start * 1e6, side="right"), np.searchsorted(starts, end * 1e6)
        inside = slice(int(first), int(last))
        beside[inside] += np.clip(
            np.minimum(ends[inside], end * 1e6) - np.maximum(starts[inside], start * 1e6), 0, None
        )
    length = np.maximum(ends - starts, 1e-9)
    found: Mask = beside >= (thresholds.SLOWED - 1) * length
    usual = length[others & ~found]
    if not found.any() or not len(usual) or length[found].mean() < thresholds.SLOWED * np.median(usual):
        return np.zeros(len(rows), np.bool_)
    return found


def _gaps(rows: StepRows, kept: StepRows, keep: Mask, loop_us: tuple[float, float]) -> tuple[tuple[float, float], ...]:
    """Return each stretch, from the last judged step before it to the first wait or step after it."""
    begins: Floats = kept.start - kept.parts[:, column("wait")]
    places = np.flatnonzero(keep)
    gaps = np.flatnonzero(np.diff(places) > 1)
    found = [(kept.end[gap], begins[gap + 1]) for gap in gaps]
    if not keep[0]:
        found.insert(0, (loop_us[0], begins[0]))
    if places[-1] != len(rows) - 1:
        found.append((kept.end[-1], loop_us[1]))
    return tuple((float(start) / 1e6, float(end) / 1e6) for start, end in found if end > start)
