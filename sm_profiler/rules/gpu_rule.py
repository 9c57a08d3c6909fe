"""What the rules that look at one metric of each GPU share."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from sm_profiler.rules.builtin import BuiltinRule
from sm_profiler.rules.gpus import per_gpu, why_not
from sm_profiler.rules.nodes import natural
from sm_profiler.rules.quantile_sketch import Series, Spread
from sm_profiler.rules.rolling_series import Judge, Track, merge_tracks
from sm_profiler.rules.window import Window

VALUES = "values"


class GpuRule(BuiltinRule):
    """Judges a metric of each GPU by its last values; the parameters have a `patience`.

    Attributes:
        metric: the metric, as system metrics name it.
        Judge: made with the parameters; judges the series VALUES.
    """

    metric: ClassVar[str]
    Judge: ClassVar[type[Any]]

    def start(self) -> None:
        """Nothing has been seen yet."""
        self._judge: Judge = self.Judge(self.parameters)
        self._tracks: dict[tuple[str, str], Track] = {}
        self._series: dict[tuple[str, str], Series] = {}

    def update(self, window: Window) -> bool:
        """Take the window's values of each GPU; True once it has fired."""
        if self.service:
            if window.looked_at_by_service:
                self.update_as_service(window)
            return self.triggered > 0
        for node, gpu, values in per_gpu(window.new_system, self.metric):
            track = self._tracks.setdefault((node, gpu), Track(self._judge))
            self.triggered += track.feed(window.start_us, {VALUES: values})
        return self.triggered > 0

    @abstractmethod
    def update_as_service(self, window: Window) -> None:
        """Take a window as the managed service does."""

    @abstractmethod
    def describe(self, found: dict[str, Any], spread: Spread) -> dict[str, Any]:
        """The details of a GPU that fired, from those of the last time and all its values."""

    def absorb(self, other: GpuRule) -> None:
        """Take in other nodes or other minutes of the same job."""
        merge_tracks(self._tracks, other._tracks)
        self.triggered = sum(track.hits for track in self._tracks.values())

    def finish(self) -> None:
        """Write the details of each GPU that fired."""
        if self.service:
            return
        tracks = sorted(self._tracks.items(), key=lambda item: (natural(item[0][0]), natural(item[0][1])))
        self.triggered = self.violations = sum(track.hits for _, track in tracks)
        self.datapoints = max((track.count(VALUES) for _, track in tracks), default=0)
        self.details = {}
        for (node, gpu), track in tracks:
            if track.last_hit:
                self.details.setdefault(node, {})[gpu] = self.describe(track.last_hit[1], track.spread(VALUES))
        hits = [track.last_hit[0] for _, track in tracks if track.last_hit]
        if hits:
            self.details["last_timestamp"] = max(hits)
        self.not_evaluated(why_not(self.datapoints, self.parameters.patience))
