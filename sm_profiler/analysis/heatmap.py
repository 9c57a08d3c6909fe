"""`Heatmap`: system metrics as rows of colours."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from bokeh.models import HoverTool, LinearColorMapper
from bokeh.palettes import viridis

from sm_profiler.analysis.chart_data import HeatmapRows, heat_rows, system_series
from sm_profiler.analysis.charts import WIDTH, Chart, ColumnDataSource, figure, latest_us, plain, system_reader
from sm_profiler.analysis.readers import ProfileLocation, SystemMetricsReader
from sm_profiler.analysis.selection import system_rows

_UTILIZATION = (".*CPU", ".*GPU")
_ANY = (".*",)


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
        self.last_timestamp = latest_us(self.metrics_reader) if endtime is None else endtime
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
        self.last_timestamp = current_timestamp
        self.metrics_reader.refresh_event_file_list()
        self.rows = self._read()
        self._fill()
        self.plot.x_range.end = max(1, self.rows.values.shape[1])
        self.push()

    def _read(self) -> HeatmapRows:
        system = self.metrics_reader.columns()
        rows = system_rows(system, self.starttime, self.last_timestamp)
        series = system_series(system[rows], by_node=self.show_workers)
        return heat_rows(series, self.select_dimensions, self.select_events)

    def _fill(self) -> None:
        count, width = self.rows.values.shape
        self.source.data = {
            "image": [row.reshape(1, -1).astype(np.float32) for row in self.rows.values],
            "y": np.arange(count),
            "dw": np.full(count, width),
            "metric": list(self.rows.names),
        }
