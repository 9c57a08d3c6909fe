"""All traces of a job, one or several a rank."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from numpy.typing import NDArray

from sm_profiler.errors import SourceError
from sm_profiler.formats import layout
from sm_profiler.formats.kineto_reader import (
    HEAD_BYTES,
    KinetoColumns,
    KinetoTrace,
    is_kineto,
    read_kineto,
    unpacked_head,
)
from sm_profiler.formats.outcome import REFUSED, Outcome
from sm_profiler.gpu_traces import callers, device_time, kernels, roofline
from sm_profiler.gpu_traces.table import TraceTable
from sm_profiler.storage import FileInfo, Storage, open_storage

if TYPE_CHECKING:
    import pandas as pd

_NAMES = (".json", ".json.gz")
_RANK = re.compile(r"rank[-_.]?([0-9]{1,6})", re.IGNORECASE)
_TIME = re.compile(r"\.[0-9]{9,20}\.pt\.trace\.json(\.gz)?$")  # as tensorboard_trace_handler names its files
_BLOCK = 1 << 20
MAX_FILES = 10_000
_SMALL = 1 << 40  # no trace has so many launches


@attrs.frozen
class KinetoFile:
    """A file of a job's traces and what could be read of it."""

    key: str
    outcome: Outcome


def find_traces(source: str | os.PathLike[str]) -> tuple[Storage, list[FileInfo]]:
    """Return the storage and the files of torch.profiler's traces in it.

    Args:
        source: a file, a folder, or an s3:// prefix.

    Raises:
        SourceError: the source cannot be listed.
    """
    text = os.fspath(source)
    local = "://" not in text and Path(text).is_file()
    storage = open_storage(Path(text).parent if local else text)
    names = [Path(text).name] if local else []
    found = []
    for info in storage.list(names[0] if names else ""):
        # large profiles have thousands of files that are no traces of torch.profiler
        of_profile = isinstance(layout.parse_path(info.key), layout.SystemFile | layout.TraceFile)
        wanted = info.key == names[0] if names else info.key.endswith(_NAMES) and not of_profile
        if wanted and is_kineto(unpacked_head(storage.read(info.key, 0, HEAD_BYTES))):
            found.append(info)
        if len(found) == MAX_FILES:
            break
    return storage, found


class GpuTraces:
    """Traces of torch.profiler (Kineto), of any number of ranks.

    Times are microseconds. A trace that marks several steps is analysed without its last one, whose kernels may still run
    when the recording ends. Several traces of one rank are joined end to end.

    Attributes:
        ranks: rank → its trace.
        files: the files and what could be read of them.
    """

    def __init__(self, source: str | os.PathLike[str], *, last_step: bool = False) -> None:
        """Read the traces.

        Args:
            source: a file, a folder, or an s3:// prefix of `*.json` and `*.json.gz` traces.
            last_step: keep the last step.

        Raises:
            SourceError: there is no trace, or it cannot be read.
        """
        storage, infos = find_traces(source)
        files: list[KinetoFile] = []
        by_rank: dict[int, list[KinetoTrace]] = {}
        ranks = Ranks()
        for info in infos:
            trace, outcome = read_trace(storage, info)
            files.append(KinetoFile(info.key, outcome))
            if outcome.status != REFUSED:
                by_rank.setdefault(ranks.of(trace, info.key), []).append(trace)
        if not by_rank:
            raise SourceError(f"{os.fspath(source)} contains no traces of torch.profiler")
        self._take(by_rank, files, last_step=last_step)

    @classmethod
    def of(cls, traces: Mapping[int, Sequence[KinetoTrace]], files: Sequence[KinetoFile] = ()) -> GpuTraces:
        """Return traces that are read already.

        Args:
            traces: rank → its traces in time order.
            files: where they come from.
        """
        gpu = cls.__new__(cls)
        gpu._take(traces, files, last_step=False)  # its own
        return gpu

    def _take(
        self, traces: Mapping[int, Sequence[KinetoTrace]], files: Sequence[KinetoFile], *, last_step: bool
    ) -> None:
        prepare: Callable[[KinetoTrace], KinetoTrace] = (lambda item: item) if last_step else callers.without_last_step
        self.files = tuple(files)
        self.ranks: Mapping[int, KinetoTrace] = {
            rank: _joined([prepare(trace) for trace in of_rank]) for rank, of_rank in sorted(traces.items())
        }
        self._callers: dict[int, callers.Callers] = {}

    def columns(self, table: str) -> TraceTable:
        """Return one of the tables as numpy columns, which needs no pandas and takes less time than a DataFrame.

        Args:
            table: name of one of the methods below, such as `kernels`.
        """
        if table == "stragglers":
            return device_time.stragglers(self.ranks)
        make = _TABLES[table]
        return TraceTable.by_rank({rank: make(self, rank) for rank in self.ranks})

    def temporal_breakdown(self) -> pd.DataFrame:
        """Return how each GPU spent the time from its first to its last kernel.

        Returns:
            Columns rank, idle_us, compute_us, non_compute_us (only communicating or copying), total_us.
        """
        return self.columns("temporal_breakdown").frame()

    def idle_breakdown(self, delay_us: float = device_time.CONSECUTIVE_US) -> pd.DataFrame:
        """Return the idle time of each stream by reason.

        Args:
            delay_us: a queued kernel that starts within this time after the previous one waited for that one only.

        Returns:
            Columns rank, stream, category (`host_wait`: not launched yet; `kernel_wait`; `other`: waiting for another
            stream), idle_us, share.
        """
        idle = {rank: device_time.idle(trace.events, delay_us) for rank, trace in self.ranks.items()}
        return TraceTable.by_rank(idle).frame()

    def kernels(self, n: int | None = None) -> pd.DataFrame:
        """Return the kernels and copies, the most expensive of each rank first.

        Args:
            n: keep so many a rank.

        Returns:
            Columns rank, kind (`computation`, `communication`, `memory`), name, count, sum_us, mean_us, min_us, max_us, std_us,
            share.
        """
        frame = self.columns("kernels").frame()
        return frame.groupby("rank").head(n).reset_index(drop=True) if n else frame

    def kinds(self) -> pd.DataFrame:
        """Return the busy time by kind of kernel and combination of kinds: columns rank, kind, sum_us, share."""
        return self.columns("kinds").frame()

    def communication_overlap(self) -> pd.DataFrame:
        """Return what computation hides of communication: columns rank, share_hidden (NaN without any), exposed_us."""
        return self.columns("communication_overlap").frame()

    def communication(self) -> pd.DataFrame:
        """Return the collectives by operation and group; see `device_time.communication`."""
        return self.columns("communication").frame()

    def stragglers(self) -> pd.DataFrame:
        """Return how long each rank keeps the others waiting in collectives; see `device_time.stragglers`."""
        return self.columns("stragglers").frame()

    def launch_statistics(self) -> pd.DataFrame:
        """Return one row a launch, by rank.

        Returns:
            Columns rank, correlation, name, call, stream, cpu_us, gpu_us, delay_us, shorter_than_launch.
        """
        return self.columns("launch_statistics").frame()

    def queue_length(self) -> pd.DataFrame:
        """Return the queue of each stream: columns rank, stream, count, mean, std, min, median, max, full_us."""
        return self.columns("queue_length").frame()

    def queue_length_series(self) -> pd.DataFrame:
        """Return the queue of each stream over time: columns rank, stream, time_us, queue_length; a row a change."""
        return self.columns("queue_length_series").frame()

    def memory_bandwidth(self) -> pd.DataFrame:
        """Return the copies by direction, with their bandwidth; see `kernels.memory_bandwidth`."""
        return self.columns("memory_bandwidth").frame()

    def operators(self) -> pd.DataFrame:
        """Return the time on the device by the operator, module and line that launched it; see `callers.operators`."""
        return self.columns("operators").frame()

    def synchronizations(self) -> pd.DataFrame:
        """Return the calls in which the host waited for the device; see `callers.synchronizations`."""
        return self.columns("synchronizations").frame()

    def critical_path(self) -> pd.DataFrame:
        """Return the critical path of each rank: columns rank, kind, name, start_us, duration_us."""
        return self.columns("critical_path").frame()

    def flops(self) -> pd.DataFrame:
        """Return the arithmetic of each rank; see `roofline.flops`."""
        return self.columns("flops").frame()

    def roofline(self) -> pd.DataFrame:
        """Return what limits each operator: arithmetic, memory or launches; see `roofline.roofline`."""
        return self.columns("roofline").frame()

    def steps(self) -> pd.DataFrame:
        """Return the steps that the traces mark: columns rank, step, start_us, end_us."""
        return self.columns("steps").frame()

    def callers(self, rank: int) -> callers.Callers:
        """Return what finds the host's side of a rank's kernels."""
        if rank not in self._callers:
            self._callers[rank] = callers.Callers(self.ranks[rank].events)
        return self._callers[rank]


def _of_events(table: Callable[[KinetoColumns], TraceTable]) -> Callable[[GpuTraces, int], TraceTable]:
    return lambda gpu, rank: table(gpu.ranks[rank].events)


def _of_trace(table: Callable[[KinetoTrace], TraceTable]) -> Callable[[GpuTraces, int], TraceTable]:
    return lambda gpu, rank: table(gpu.ranks[rank])


def _of_callers(
    table: Callable[[KinetoColumns, callers.Callers], TraceTable],
) -> Callable[[GpuTraces, int], TraceTable]:
    return lambda gpu, rank: table(gpu.ranks[rank].events, gpu.callers(rank))


def _row(values: Callable[[KinetoColumns], dict[str, float]]) -> Callable[[GpuTraces, int], TraceTable]:
    def table(events: KinetoColumns) -> TraceTable:
        found = values(events)
        return TraceTable.of(tuple(found), [tuple(found.values())])

    return _of_events(table)


_TABLES: dict[str, Callable[[GpuTraces, int], TraceTable]] = {
    "temporal_breakdown": _row(device_time.temporal),
    "idle_breakdown": _of_events(device_time.idle),
    "kernels": _of_events(device_time.kernels),
    "kinds": _of_events(device_time.by_kind),
    "communication_overlap": _row(device_time.overlap),
    "communication": _of_trace(device_time.communication),
    "launch_statistics": _of_events(callers.launch_statistics),
    "queue_length": _of_events(callers.queue_summary),
    "queue_length_series": _of_events(callers.queue_lengths),
    "memory_bandwidth": _of_events(kernels.memory_bandwidth),
    "operators": _of_callers(callers.operators),
    "synchronizations": _of_callers(callers.synchronizations),
    "critical_path": _of_events(device_time.critical_path),
    "flops": _of_trace(roofline.flops),
    "roofline": lambda gpu, rank: roofline.roofline(gpu.ranks[rank], gpu.callers(rank)),
    "steps": _of_events(callers.steps),
}


def _blocks(storage: Storage, info: FileInfo) -> Iterator[bytes]:
    for at in range(0, info.size, _BLOCK):
        yield storage.read(info.key, at, min(at + _BLOCK, info.size))


def read_trace(storage: Storage, info: FileInfo) -> tuple[KinetoTrace, Outcome]:
    return read_kineto(_blocks(storage, info))


class Ranks:
    """Gives traces their ranks: as the trace names it, else its file, else by the process that wrote it."""

    def __init__(self) -> None:
        self._writers: dict[str, int] = {}

    def of(self, trace: KinetoTrace, key: str) -> int:
        """Return the rank of a file's trace; files that differ by the time in their names only are of one process."""
        if trace.rank is not None:
            return trace.rank
        named = _RANK.search(key.rpartition("/")[2])
        return int(named[1]) if named else self._writers.setdefault(_TIME.sub("", key), len(self._writers))


def _joined(traces: list[KinetoTrace]) -> KinetoTrace:
    whole = traces[0]
    for trace in traces[1:]:
        before, after = _with_small_numbers(whole.events), _with_small_numbers(trace.events)
        at = float(before.end_us.max()) if len(before) else 0.0
        moved = attrs.evolve(
            after,
            start_us=after.start_us + at,
            thread=after.thread + len(whole.threads),
            correlation=_after(after.correlation, int(before.correlation.max(initial=-1)) + 1),
            sequence=_after(after.sequence, int(before.sequence.max(initial=-1)) + 1),
            inputs=_after(after.inputs, len(whole.inputs)),
            collective=_after(after.collective, len(whole.collectives)),
        )
        whole = attrs.evolve(
            whole,
            events=KinetoColumns.concat([before, moved]),
            collectives=whole.collectives + trace.collectives,
            inputs=whole.inputs + trace.inputs,
            threads=whole.threads + trace.threads,
        )
    return whole


def _with_small_numbers(events: KinetoColumns) -> KinetoColumns:
    """Return events whose numbers of launches and of operators are so small that those of other traces can follow."""
    return attrs.evolve(events, correlation=_small(events.correlation), sequence=_small(events.sequence))


def _small(numbers: NDArray[Any]) -> NDArray[Any]:
    if numbers.max(initial=-1) < _SMALL:
        return numbers
    codes = np.unique(numbers, return_inverse=True)[1].astype(numbers.dtype)
    return np.where(numbers >= 0, codes, numbers)


def _after(numbers: NDArray[Any], offset: int) -> NDArray[Any]:
    """Return numbers that follow others; -1, for none, stays."""
    return np.where(numbers >= 0, numbers + numbers.dtype.type(offset), numbers)
