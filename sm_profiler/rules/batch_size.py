"""BatchSize: CPU, GPU and GPU memory all have room left."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from sm_profiler.formats.columns import Floats
from sm_profiler.rules.builtin import BuiltinRule
from sm_profiler.rules.gpus import GPU_MEMORY, GPU_USE, per_gpu, why_not
from sm_profiler.rules.node_sums import sums_per_moment
from sm_profiler.rules.nodes import natural
from sm_profiler.rules.parameters import count, percentile
from sm_profiler.rules.quantile_sketch import Series, whole_box
from sm_profiler.rules.rolling_series import Chunk, Judge, Track, merge_tracks
from sm_profiler.rules.window import Window

CPU, MEMORY = "cpu", "_memory"


@attrs.frozen
class BatchSizeParameters:
    """Percentages; window and patience count data points."""

    cpu_threshold_p95: float = percentile(70)
    gpu_threshold_p95: float = percentile(70)
    gpu_memory_threshold_p95: float = percentile(70)
    patience: int = count(1000)
    window: int = count(500)


class _RoomLeft(Judge):
    """A node's CPU is little used, and so are a GPU and its memory."""

    def __init__(self, parameters: BatchSizeParameters) -> None:
        self.parameters = parameters
        self.needed = max(parameters.patience, parameters.window) + 1
        self.look_back = parameters.window

    def judge(self, before: dict[str, int], tails: Chunk, new: Chunk) -> tuple[int, dict[str, Any]]:
        lengths = {name: before[name] + len(new[name]) for name in new}
        gpus = self.roomy(lengths, tails)
        return len(gpus), dict.fromkeys(gpus, True)

    def roomy(self, lengths: dict[str, int], last: Chunk) -> list[str]:
        """The GPUs of a node that have room left."""
        limits, size = self.parameters, self.parameters.window

        def high(name: str) -> float:
            return float(np.quantile(last[name][-size:], 0.95))

        if lengths.get(CPU, 0) <= max(size, limits.patience) or high(CPU) >= limits.cpu_threshold_p95:
            return []
        gpus = [name for name in lengths if name != CPU and not name.endswith(MEMORY) and lengths[name] > size]
        gpus = [gpu for gpu in gpus if len(last.get(gpu + MEMORY, ()))]
        return [
            gpu
            for gpu in gpus
            if high(gpu) < limits.gpu_threshold_p95 and high(gpu + MEMORY) < limits.gpu_memory_threshold_p95
        ]


class BatchSize(BuiltinRule):
    """Fires for each GPU that is little used, as are its memory and its node's CPU (95th percentiles of the last values)."""

    description = "CPU, GPU and GPU memory all have room left: the batches are too small for the machine."
    recommendation = "Use larger batches, or a smaller instance."
    Parameters = BatchSizeParameters

    def start(self) -> None:
        """Nothing has been seen yet."""
        self._judge = _RoomLeft(self.parameters)
        self._cores: dict[str, set[str]] = {}  # names per node; the service counts them across nodes
        self._tracks: dict[str, Track] = {}
        self._series: dict[str, dict[str, Series]] = {}
        self._first_us: int | None = None
        self._gpu_values = 0

    def update(self, window: Window) -> bool:
        """Take the window's values of each node; True once it has fired."""
        if self.service:
            if window.looked_at_by_service:
                self._update_as_service(window)
            return self.triggered > 0
        for node, chunk in self._chunks(window).items():
            track = self._tracks.setdefault(node, Track(self._judge))
            track.feed(window.start_us, chunk)
        self.triggered = sum(track.hits for track in self._tracks.values())
        return self.triggered > 0

    def _chunks(self, window: Window) -> dict[str, dict[str, Floats]]:
        """The window's new values, per node and series."""
        system = window.system if self.service else window.new_system
        chunks: dict[str, dict[str, Floats]] = {}
        is_cpu = system.dimension.mask("CPUUtilization")
        for node in system.node.present():
            of_node = system.name[is_cpu & system.node.mask(node)].present()
            self._cores.setdefault("" if self.service else node, set()).update(of_node)
        for node, sums in sums_per_moment(system, is_cpu):
            cores = self._cores["" if self.service else node]
            chunks.setdefault(node, {})[CPU] = sums / len(cores)
        for dimension, suffix in ((GPU_USE, ""), (GPU_MEMORY, MEMORY)):
            for node, gpu, values in per_gpu(system, dimension):
                chunks.setdefault(node, {})[gpu + suffix] = values
                self._gpu_values += len(values)
        return chunks

    def _update_as_service(self, window: Window) -> None:
        self._first_us = window.start_us if self._first_us is None else self._first_us
        for node, chunk in self._chunks(window).items():
            for name, values in chunk.items():
                self._series.setdefault(node, {}).setdefault(name, Series()).add(values)
        for node, series in self._series.items():
            if CPU not in series:
                continue
            self.datapoints = len(series[CPU])
            of_node = {name: one.values for name, one in series.items()}
            gpus = self._judge.roomy({name: len(one) for name, one in of_node.items()}, of_node)
            for gpu in gpus:
                self.triggered += 1
                self.violations += 1
                found = self.details.setdefault(node, {})
                found[CPU] = whole_box(of_node[CPU])
                found[gpu] = whole_box(of_node[gpu])
                found[gpu + MEMORY] = whole_box(of_node[gpu + MEMORY], float(np.quantile(of_node[gpu], 0.25)))
                self.details["last_timestamp"] = self._first_us

    def absorb(self, other: BatchSize) -> None:
        """Take in other nodes or other minutes of the same job."""
        merge_tracks(self._tracks, other._tracks)
        for node, names in other._cores.items():
            self._cores.setdefault(node, set()).update(names)
        self._gpu_values += other._gpu_values

    def finish(self) -> None:
        """Write the details of each node that fired."""
        if self.service:
            return
        tracks = sorted(self._tracks.items(), key=lambda item: natural(item[0]))
        self.triggered = self.violations = sum(track.hits for _, track in tracks)
        self.datapoints = max((track.count(CPU) for _, track in tracks), default=0)
        self.details = {}
        for node, track in tracks:
            if track.last_hit:
                gpus = sorted(track.last_hit[1], key=natural)
                names = [CPU, *(name for gpu in gpus for name in (gpu, gpu + MEMORY))]
                self.details[node] = {name: track.spread(name).box() for name in names}
        hits = [track.last_hit[0] for _, track in tracks if track.last_hit]
        if hits:
            self.details["last_timestamp"] = max(hits)
        patience = max(self.parameters.patience, self.parameters.window)
        self.not_evaluated(why_not(self.datapoints if self._gpu_values else 0, patience))
