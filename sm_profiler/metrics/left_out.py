"""Steps that the profiler slowed down: a report judges from the others, if they suffice.

The steps of a window are slower, and so are those beside which its results are written: writing competes for the
interpreter, on a busy machine for seconds.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import numpy as np

from sm_profiler.formats import layout
from sm_profiler.formats.columns import Floats, Ints, Mask
from sm_profiler.formats.cprofile_reader import DamagedStatisticsError, Function, Statistics, read_statistics
from sm_profiler.formats.recorded import Profiling
from sm_profiler.formatting import is_library
from sm_profiler.metrics import thresholds
from sm_profiler.metrics.record_fold import Record
from sm_profiler.metrics.step_fold import OWN, TRAIN, StepRows, column

CPROFILE = "cprofile"
MAX_FILES = 12  # windows have a few steps, with two files each
MAX_BYTES = 4_000_000  # of a file
MODEL = "/torch/nn/modules/module.py"  # calls forward()


@attrs.frozen
class FunctionTime:
    """A function of the script: its file, first line and name, and its seconds with the libraries that it calls."""

    file: str
    line: int
    function: str
    seconds: float


def read_functions(source: Any) -> tuple[FunctionTime, ...]:
    """Return the script's functions in the steps of the Python window, the most expensive first; none without one.

    Functions that the model's forward pass calls are left out.

    Args:
        source: a `sm_profiler.source.ProfileSource`.
    """
    storage = getattr(source, "storage", None)
    if storage is None:
        return ()
    seconds: dict[Function, float] = defaultdict(float)
    # listed with the data: a listing of its own would cost as much as the whole job is long, for each report
    for info in _files(source.other_files):
        with contextlib.suppress(DamagedStatisticsError):
            for function, spent in own_seconds(read_statistics(storage.read(info.key))).items():
                seconds[function] += spent
    ranked = sorted(seconds.items(), key=lambda item: (-item[1], item[0]))
    return tuple(FunctionTime(*function, spent) for function, spent in ranked if spent > 0)


def _files(files: Iterable[Any]) -> list[Any]:
    """Return the files with the statistics of training steps, the first ones."""
    found = []
    for info in files:
        parsed = layout.parse_path(info.key)
        if not isinstance(parsed, layout.PythonStats) or parsed.profiler != CPROFILE or info.size > MAX_BYTES:
            continue
        if parsed.window.start_mode == parsed.window.end_mode == "train":
            found.append((parsed.window.start_us, info))
    return [info for _, info in sorted(found, key=lambda pair: (pair[0], pair[1].key))[:MAX_FILES]]


def own_seconds(statistics: Statistics) -> dict[Function, float]:
    """Return the script's functions with their time, without that of the script's functions which they call."""
    found: dict[Function, float] = {}
    for function, (*_, cumulative, callers) in statistics.items():
        if not is_library(function[0]) and not _is_forward(callers):
            found[function] = found.get(function, 0.0) + cumulative
    for function, (*_, callers) in statistics.items():
        if is_library(function[0]):
            continue
        for caller, through in callers.items():
            if caller in found:
                found[caller] -= through[-1]
    return {function: max(spent, 0.0) for function, spent in found.items()}


def _is_forward(callers: Iterable[Function]) -> bool:
    callers = list(callers)
    return bool(callers) and all(caller[0].endswith(MODEL) for caller in callers)


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
        beside: other work of the profiler, on another thread or in another process; and the share of the span for which it
            ran.
        calls: calls of the script, such as saves, in which such a window was open, or the profiler held the thread.
    """

    windows: Sequence[tuple[float, float]] = ()
    beside: Sequence[tuple[float, float, float]] = ()
    calls: Sequence[tuple[float, float]] = ()


UNDISTURBED = Disturbed()


def disturbed_spans(records: Sequence[Record[Profiling]], calls: Iterable[Record[Any]] = ()) -> Disturbed:
    """Return the spans in which the profiler disturbed a process.

    Args:
        records: what the profiler did.
        calls: saves, log lines and callbacks of the script.
    """
    windows = [
        (one.start, one.end)
        for one in records
        if one.args.kind == "window" and (one.args.slower is None or one.args.slower >= thresholds.SLOWED)
    ]
    touching = [*windows, *((one.start, one.end) for one in records if one.args.kind == "stall")]
    touched = [
        (one.start, one.end)
        for one in calls
        if one.calls == 1 and any(start <= one.end and one.start <= end for start, end in touching)
    ]
    beside = [(one.start, one.end, _busy_share(one)) for one in records if one.args.kind == "background"]
    return Disturbed(windows, beside, touched)


def _busy_share(record: Record[Profiling]) -> float:
    """Return the share of its time for which a process ran; a thread may hold the interpreter while it waits for a core."""
    spent, length = record.args.cpu_s, record.end - record.start
    return 1.0 if spent is None or not 0 <= spent < length else spent / length


def keep_undisturbed(rows: StepRows, spans: Disturbed, loop_us: tuple[float, float]) -> Kept:
    """Leave out the steps that the profiler slowed, unless too few training steps would remain."""
    train = rows.mode == TRAIN
    index = np.cumsum(train) - 1
    slow = np.zeros(len(rows), np.bool_)
    for start, end in spans.windows:
        slow |= (rows.start >= start * 1e6) & (rows.start < end * 1e6)
    before = np.append(-np.inf, rows.end[:-1])  # a step that follows a call has its time
    for start, end in spans.calls:
        slow |= (before < end * 1e6) & (rows.end > start * 1e6)
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


def _competed(rows: StepRows, spans: Sequence[tuple[float, float, float]], others: Mask) -> Mask:
    """Return the steps that work beside them made longer.

    Work that takes a small part of a step hardly changes it, and leaving it out would leave out the longest steps first.
    Means are compared with means: of steps that differ by themselves, few of which are long, the mean is not the median.
    """
    starts: Floats = rows.start - rows.parts[:, column("wait")]
    ends = np.append(starts[1:], rows.end[-1:])
    beside = np.zeros(len(rows))
    for start, end, share in spans:
        first, last = np.searchsorted(ends, start * 1e6, side="right"), np.searchsorted(starts, end * 1e6)
        inside = slice(int(first), int(last))
        common = np.minimum(ends[inside], end * 1e6) - np.maximum(starts[inside], start * 1e6)
        beside[inside] += share * np.clip(common, 0, None)
    length = np.maximum(ends - starts - rows.parts[:, column(OWN)], 1e-9)  # the profiler's own time is no part of them
    found: Mask = beside >= (thresholds.SLOWED - 1) * length
    usual = length[others & ~found]
    if not found.any() or not len(usual) or length[found].mean() < thresholds.SLOWED * usual.mean():
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
