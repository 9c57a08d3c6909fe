"""`StepHistogram` and `MetricsHistogram`: distributions of durations and system metrics."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from bokeh.models import HoverTool, LinearColorMapper
from bokeh.palettes import viridis

from sm_profiler.analysis.charts import (
    WIDTH,
    Chart,
    ColumnDataSource,
    HeatmapRows,
    Series,
    chosen,
    duration_edges,
    durations_by_phase,
    figure,
    framework_reader,
    grid,
    heat_rows,
    histogram,
    histogram_figure,
    latest_us,
    log_unmatched,
    log_unmatched_metrics,
    plain,
    system_reader,
    system_series,
    until_us,
)
from sm_profiler.analysis.readers import (
    AlgorithmMetricsReader,
    ProfileLocation,
    SystemMetricsReader,
    event_rows,
    system_rows,
    training_events,
)
from sm_profiler.formats import event_names
from sm_profiler.formats.columns import Floats

_UTILIZATION = (".*CPU", ".*GPU")
_ANY = (".*",)

_STEPS = (event_names.STEP, f"{event_names.FORWARD}-node", re.escape(f"{event_names.BACKWARD}-node"))
_PERCENT_EDGES = np.arange(0, 102, 2.0)


class Heatmap(Chart):
    """Heat map of system metrics, one row per device and one column per measurement.

    Attributes:
        rows: data of the chart, in percent.
        plot: the Bokeh figure.
    """

    title = "System metrics"

    def __init__(  # the known signature
        self,
        metrics_reader: SystemMetricsReader | ProfileLocation,
        select_metrics: Sequence[str] = (),  # the known signature
        starttime: float = 0,
        endtime: float | None = None,
        select_dimensions: Sequence[str] = _UTILIZATION,
        select_events: Sequence[str] = _ANY,
        plot_height: int = 350,
        show_workers: bool = True,
    ) -> None:
        """Read and draw.

        Args:
            metrics_reader: a reader, or the location of a profile.
            select_metrics: ignored.
            starttime: start of the range, microseconds since the epoch.
            endtime: end of the range, microseconds since the epoch; default: the end of the data.
            select_dimensions: regular expressions for dimensions.
            select_events: regular expressions for devices (`cpu0`, `gpu1`, `total` …).
            plot_height: height in pixels.
            show_workers: draw one row per device and node instead of one per device.

        Raises:
            ConfigError: a pattern is not a valid regular expression.
            SourceError: the profile does not exist or cannot be reached.
        """
        super().__init__()
        self.metrics_reader = system_reader(metrics_reader)
        self.last_timestamp = until_us(self.metrics_reader, endtime)
        self.starttime, self.plot_height, self.show_workers = starttime, plot_height, show_workers
        self.select_dimensions, self.select_events = select_dimensions, select_events
        self.rows = self._read()
        self.create_plot()
        self.show()

    def create_plot(self) -> None:
        """Draw the rows."""
        count, width = self.rows.values.shape
        self.plot = figure(
            height=self.plot_height,
            width=WIDTH,
            x_range=(max(0, width - WIDTH), max(1, width)),
            y_range=(0, max(1, count)),
            tools="crosshair,reset,xpan,xwheel_zoom,save",
        )
        self.source = ColumnDataSource()
        self._fill()
        colours = LinearColorMapper(palette=list(viridis(100)), low=0, high=100)
        self.plot.image("image", x=0, y="y", dw="dw", dh=1, source=self.source, color_mapper=colours)
        self.plot.add_tools(HoverTool(tooltips=[("usage", "@image"), ("metric", "@metric"), ("index", "$x{0}")]))
        self.plot.yaxis.ticker = (np.arange(count) + 0.5).tolist()
        self.plot.yaxis.major_label_overrides = {
            number + 0.5: plain(name) for number, name in enumerate(self.rows.names)
        }
        self.plot.yaxis.major_label_text_font_size = "7pt"
        self.plot.xaxis.axis_label = "measurement"
        self.plot.grid.visible = False
        self.layout = self.plot

    def update_data(self, current_timestamp: float) -> None:
        """Add measurements since the last update, up to a time in microseconds since the epoch."""
        self.last_timestamp = until_us(self.metrics_reader, current_timestamp)
        self.rows = self._read()
        self._fill()
        self.plot.x_range.end = max(1, self.rows.values.shape[1])
        self.push()

    def _read(self) -> HeatmapRows:
        system = self.metrics_reader.columns()
        rows = system_rows(system, self.starttime, self.last_timestamp)
        series = system_series(system[rows], by_node=self.show_workers)
        if self.layout is None:  # not in every update
            log_unmatched_metrics(series, self.select_dimensions, self.select_events, _UTILIZATION)
        return heat_rows(series, self.select_dimensions, self.select_events)

    def _fill(self) -> None:
        count, width = self.rows.values.shape
        self.source.data = {
            "image": [row.reshape(1, -1).astype(np.float32) for row in self.rows.values],
            "y": np.arange(count),
            "dw": np.full(count, width),
            "metric": list(self.rows.names),
        }


class StepHistogram(Chart):
    """Histograms of the durations of steps and their phases; call `plot` to draw them.

    Attributes:
        step_metrics: phase (and process) → durations in seconds.
        sources: phase (and process) → data of its histogram.
    """

    title = "Step durations"

    def __init__(self, metrics_reader: AlgorithmMetricsReader | ProfileLocation, width: int = 500) -> None:
        """Open a profile.

        Args:
            metrics_reader: a reader, or the location of a profile.
            width: ignored; all steps count.

        Raises:
            SourceError: the profile does not exist or cannot be reached.
        """
        super().__init__()
        self.metrics_reader = framework_reader(metrics_reader)
        self.width = width
        self.last_timestamp = latest_us(self.metrics_reader)
        self.clear()

    def clear(self) -> None:
        """Discard what was read."""
        self.step_metrics: dict[str, Floats] = {}
        self.sources: dict[str, Any] = {}

    def plot(
        self,
        starttime: float = 0,
        endtime: float | None = None,
        select_metrics: Sequence[str] = _STEPS,
        show_workers: bool = True,  # the known signature
    ) -> None:
        """Read and draw.

        Args:
            starttime: start of the range, microseconds since the epoch.
            endtime: end of the range, microseconds since the epoch; default: the end of the data.
            select_metrics: regular expressions for phases (`Forward-nodeid:algo-1-0`).
            show_workers: draw one histogram per process instead of one for all.

        Raises:
            ConfigError: a pattern is not a valid regular expression.
        """
        self._start, self._show_workers, self._select = starttime, show_workers, select_metrics
        self.last_timestamp = until_us(self.metrics_reader, endtime)
        self._read()
        figures = []
        self.sources = {}
        for metric, durations in self.step_metrics.items():
            self.sources[metric] = ColumnDataSource(_bars(durations, duration_edges(durations)))
            figures.append(histogram_figure(f"{metric}, s", self.sources[metric], (450, 350)))
        self.layout = grid(figures, self.metrics_reader)
        self.show()

    def update_data(self, current_timestamp: float) -> None:
        """Add data since the last update, up to a time in microseconds since the epoch."""
        self.last_timestamp = until_us(self.metrics_reader, current_timestamp)
        self._read()
        for metric, source in self.sources.items():
            source.data = _bars(self.step_metrics[metric], duration_edges(self.step_metrics[metric]))
        self.push()

    def _read(self) -> None:
        events = self.metrics_reader.columns()
        rows = event_rows(events, self._start, self.last_timestamp) & training_events(events)
        found = durations_by_phase(events[rows], by_node=self._show_workers)
        if not self.sources:  # not in every update
            log_unmatched("phase", found, self._select, _STEPS)
        self.step_metrics = {metric: found[metric] for metric in chosen(found, self._select)}


class MetricsHistogram(Chart):
    """Histograms of system metrics; call `plot` to draw them.

    Attributes:
        system_metrics: dimension (and node) → device → rows of time in seconds since the epoch and value.
        sources: dimension → device → data of its histogram.
    """

    title = "System metrics"

    def __init__(self, metrics_reader: SystemMetricsReader | ProfileLocation) -> None:
        """Open a profile.

        Args:
            metrics_reader: a reader, or the location of a profile.

        Raises:
            SourceError: the profile does not exist or cannot be reached.
        """
        super().__init__()
        self.metrics_reader = system_reader(metrics_reader)
        self.last_timestamp = latest_us(self.metrics_reader)
        self.clear()

    def clear(self) -> None:
        """Discard what was read."""
        self.system_metrics: Series = {}
        self.sources: dict[str, dict[str, Any]] = {}

    def plot(
        self,
        starttime: float = 0,
        endtime: float | None = None,
        select_dimensions: Sequence[str] = _ANY,
        select_events: Sequence[str] = _ANY,
        show_workers: bool = True,  # the known signature
    ) -> None:
        """Read and draw.

        Args:
            starttime: start of the range, microseconds since the epoch.
            endtime: end of the range, microseconds since the epoch; default: the end of the data.
            select_dimensions: regular expressions for dimensions.
            select_events: regular expressions for devices (`cpu0`, `gpu1`, `total` …).
            show_workers: draw one histogram per node instead of one for all.

        Raises:
            ConfigError: a pattern is not a valid regular expression.
        """
        self._start, self._show_workers = starttime, show_workers
        self.select_dimensions, self.select_events = select_dimensions, select_events
        self.last_timestamp = until_us(self.metrics_reader, endtime)
        self._read()
        log_unmatched_metrics(self.system_metrics, select_dimensions, select_events)
        figures = []
        self.sources = {}
        for dimension in chosen(self.system_metrics, select_dimensions):
            devices = self.system_metrics[dimension]
            for device in chosen(devices, select_events):
                source = ColumnDataSource(_bars(devices[device][:, 1], _edges(devices[device][:, 1])))
                self.sources.setdefault(dimension, {})[device] = source
                figures.append(histogram_figure(f"{dimension}_{device}", source, (250, 250)))
        self.layout = grid(figures, self.metrics_reader)
        self.show()

    def update_data(self, current_timestamp: float) -> None:
        """Add data since the last update, up to a time in microseconds since the epoch."""
        self.last_timestamp = until_us(self.metrics_reader, current_timestamp)
        self._read()
        for dimension, devices in self.sources.items():
            for device, source in devices.items():
                values = self.system_metrics[dimension][device][:, 1]
                source.data = _bars(values, _edges(values))
        self.push()

    def _read(self) -> None:
        system = self.metrics_reader.columns()
        rows = system_rows(system, self._start, self.last_timestamp)
        self.system_metrics = system_series(system[rows], by_node=self._show_workers)


def _edges(values: Floats) -> Floats:
    """Return edges every two percent; for values beyond 100, such as rates, 51 edges up to the maximum."""
    greatest = float(values.max()) if len(values) else 0.0
    return _PERCENT_EDGES if greatest <= 100 else np.linspace(0, greatest, 51)  # percent


def _bars(values: Floats, edges: Floats) -> dict[str, Floats]:
    return {"top": histogram(values, edges).astype(float), "left": edges[:-1], "right": edges[1:]}
