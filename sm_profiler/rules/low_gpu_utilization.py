"""LowGPUUtilization: GPUs that are under-used, or used in bursts."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from sm_profiler.formats.columns import Floats
from sm_profiler.rules.builtin import BuiltinRule
from sm_profiler.rules.gpus import GPU_USE, per_gpu
from sm_profiler.rules.nodes import natural
from sm_profiler.rules.parameters import count, percentile
from sm_profiler.rules.spread import Series, box
from sm_profiler.rules.tracks import Chunk, Judge, Track, merge_tracks
from sm_profiler.rules.window import Window

USE = "use"


@attrs.frozen
class LowGPUUtilizationParameters:
    """Percentages; window and patience count the values of one GPU."""

    threshold_p95: float = percentile(70)
    threshold_p5: float = percentile(10)
    window: int = count(500)
    patience: int = count(1000)


class _LowUse(Judge):
    def __init__(self, parameters: LowGPUUtilizationParameters) -> None:
        self.parameters = parameters
        self.needed = max(parameters.patience, parameters.window)
        self.look_back = parameters.window

    def judge(self, before: dict[str, int], tails: Chunk, new: Chunk) -> tuple[int, dict[str, Any]]:
        if before[USE] + len(new[USE]) <= self.parameters.patience:
            return 0, {}
        found = self.details(tails[USE][-self.parameters.window :])
        return (1, found) if self.is_low(found) else (0, {})

    def is_low(self, found: dict[str, float]) -> bool:
        """Under-used, or mostly well used and idle at times."""
        high, low = found["gpu_95"], found["gpu_5"]
        limits = self.parameters
        return high < limits.threshold_p95 or (high > limits.threshold_p95 and low < limits.threshold_p5)

    @staticmethod
    def details(last: Floats) -> dict[str, float]:
        """Maximum and percentiles of the last values."""
        return {
            "gpu_max": float(last.max()),
            "gpu_95": float(np.quantile(last, 0.95)),
            "gpu_5": float(np.quantile(last, 0.05)),
        }


class LowGPUUtilization(BuiltinRule):
    """Fires for a GPU whose 95th percentile of use is below `threshold_p95`, or whose 5th is below `threshold_p5` while the 95th is above."""

    description = "GPUs that are little used, or whose use swings between busy and idle."
    recommendation = "Look for bottlenecks, wait less often for the GPU (blocking calls), or use larger batches."
    Parameters = LowGPUUtilizationParameters

    def start(self) -> None:
        """Nothing has been seen yet."""
        self._judge = _LowUse(self.parameters)
        self._tracks: dict[tuple[str, str], Track] = {}
        self._series: dict[tuple[str, str], Series] = {}

    def update(self, window: Window) -> bool:
        """Take the window's values of each GPU; True once it has fired."""
        if self.service:
            if window.looked_at_by_service:
                self._update_as_service(window)
            return self.triggered > 0
        for node, gpu, values in per_gpu(window.new_system, GPU_USE):
            track = self._tracks.setdefault((node, gpu), Track(self._judge))
            self.triggered += track.feed(window.start_us, {USE: values})
        return self.triggered > 0

    def _update_as_service(self, window: Window) -> None:
        for node, gpu, values in per_gpu(window.system, GPU_USE):
            self._series.setdefault((node, gpu), Series()).add(values)
        for (node, gpu), series in self._series.items():
            self.datapoints = len(series)
            if len(series) <= self.parameters.patience:
                continue
            found = self._judge.details(series.values[-self.parameters.window :])
            if self._judge.is_low(found):
                self.triggered += 1
                self.violations += 1
                self.details.setdefault(node, {})[gpu] = {**found, **whole_box(series.values)}
                self.details["last_timestamp"] = window.start_us

    def absorb(self, other: LowGPUUtilization) -> None:
        """Take in other nodes or other minutes of the same job."""
        merge_tracks(self._tracks, other._tracks)
        self.triggered = sum(track.hits for track in self._tracks.values())

    def finish(self) -> None:
        """Write the details of each GPU that fired."""
        if self.service:
            return
        tracks = sorted(self._tracks.items(), key=lambda item: (natural(item[0][0]), natural(item[0][1])))
        self.triggered = self.violations = sum(track.hits for _, track in tracks)
        self.datapoints = max((track.count(USE) for _, track in tracks), default=0)
        self.details = {}
        for (node, gpu), track in tracks:
            if track.last_hit:
                self.details.setdefault(node, {})[gpu] = {**track.last_hit[1], **track.spread(USE).box()}
        hits = [track.last_hit[0] for _, track in tracks if track.last_hit]
        if hits:
            self.details["last_timestamp"] = max(hits)
        self.not_evaluated(why_not(self.datapoints, self.parameters.patience))


def why_not(datapoints: int, patience: int) -> str | None:
    """Why GPUs could not be judged, if so."""
    if datapoints == 0:
        return "no GPU metrics"
    return f"{datapoints} data points per GPU, patience is {patience}" if datapoints <= patience else None


def whole_box(values: Floats, reach_from: float | None = None) -> dict[str, float]:
    """The box plot of all values; `reach_from`: the lower quartile that the whiskers are taken from, if another's."""
    p25, p50, p75, p95 = map(float, np.quantile(values, [0.25, 0.5, 0.75, 0.95]))
    reach = None if reach_from is None else p75 - reach_from
    return box((p25, p50, p75), p95, (float(values.min()), float(values.max())), reach)
