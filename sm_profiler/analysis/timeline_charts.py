"""`TimelineCharts`: system metrics over time, and the events in a selected range."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
from bokeh.layouts import column, row
from bokeh.models import CustomJS, HoverTool

from sm_profiler.analysis.charts import (
    TOOLS,
    TOTAL,
    WIDTH,
    Bars,
    Chart,
    ColumnDataSource,
    Div,
    Series,
    StepSeries,
    bars_of,
    chosen,
    figure,
    framework_reader,
    is_percent,
    latest_us,
    log_unmatched_metrics,
    plain,
    steps_of,
    system_reader,
    system_series,
    time_annotations,
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
from sm_profiler.errors import ConfigError, SourceError
from sm_profiler.formats.columns import EventColumns, Floats, SystemColumns

_ANY = (".*",)
_CLOCK = "{%H:%M:%S.%3N}"
_BAR_TIPS = [("metric", "@metric"), ("from", f"@left{_CLOCK}"), ("to", f"@right{_CLOCK}")]
MAX_BARS = 5000
MAX_SPENT = 40  # lines that `find_time_annotations` prints: each step has lines
_TIPS = [("index", "$index"), ("time", f"@x{_CLOCK}"), ("value", "@y{0.00}")]
# Adds the first and last selected point to the list next to the charts, for `find_time_annotations`.
_SELECTED = """
const points = source.selected.indices;
if (points.length > 0) {
    const line = `<b>Selected index range: [${Math.min(...points)},${Math.max(...points)}]</b><br>`;
    div.text = (div.text + line).split("<br>").slice(-35).join("<br>");
}
"""


class StepTimelineChart(Chart):
    """Chart of the durations of all steps.

    Attributes:
        steps: the steps.
        source: data of the chart: x (seconds since the first step), y (seconds), step, metric, node.
        plot: the Bokeh figure.
    """

    title = "Step durations"

    def __init__(self, metrics_reader: AlgorithmMetricsReader | ProfileLocation, width: int = 1000) -> None:
        """Read and draw.

        Args:
            metrics_reader: a reader, or the location of a profile.
            width: number of steps visible at first.

        Raises:
            SourceError: no step was recorded.
        """
        super().__init__()
        self.metrics_reader = framework_reader(metrics_reader)
        self.width = width
        self.last_timestamp = latest_us(self.metrics_reader)
        self.steps = self._read()
        self.start = float(self.steps.start_s[0])
        self.source = ColumnDataSource()
        self.create_plot()
        self.show()

    def create_plot(self) -> None:
        """Draw the steps."""
        self.plot = figure(height=250, width=WIDTH, tools="crosshair,pan,reset,save,wheel_zoom", x_range=(0, 1))
        self._fill()
        self.plot.line("x", "y", source=self.source, line_color="blue")
        tips = [
            ("index", "$index"),
            ("step", "@step"),
            ("metric", "@metric"),
            ("process", "@node"),
            ("(x,y)", "($x, $y)"),
        ]
        self.plot.add_tools(HoverTool(tooltips=tips))
        self.plot.xaxis.axis_label = "time since the first step, s"
        self.plot.yaxis.axis_label = "step duration, s"
        self.plot.grid.visible = False
        self.layout = self.plot

    def update_data(self, current_timestamp: float) -> None:
        """Add the steps since the last update, up to a time in microseconds since the epoch."""
        self.last_timestamp = current_timestamp
        self.metrics_reader.refresh_event_file_list()
        self.steps = self._read()
        self._fill()
        self.push()

    def _read(self) -> StepSeries:
        events = self.metrics_reader.columns()
        steps = steps_of(events[event_rows(events, 0, self.last_timestamp)])
        if not len(steps.start_s):
            raise SourceError("no step was recorded")
        return steps

    def _fill(self) -> None:
        steps = self.steps
        x = steps.start_s - self.start
        data = {"x": x, "y": steps.duration_s, "step": steps.number, "metric": steps.metric, "node": steps.node}
        self.source.data = data
        self.plot.x_range.start, self.plot.x_range.end = float(x[max(0, len(x) - self.width)]), float(x[-1])


class TimelineCharts(Chart):
    """Charts of system metrics, one per metric, on a common time axis.

    Attributes:
        system_metrics: dimension (and node) → device → rows of time in seconds since the epoch and value.
        figures: the Bokeh figures.
        sources: dimension → device → data of its chart.
    """

    title = "System metrics"

    def __init__(  # the known signature
        self,
        system_metrics_reader: SystemMetricsReader | ProfileLocation,
        framework_metrics_reader: AlgorithmMetricsReader | ProfileLocation | None = None,
        starttime: float = 0,
        endtime: float | None = None,
        select_dimensions: Sequence[str] = _ANY,
        select_events: Sequence[str] = _ANY,
        x: int = 1000,
        show_workers: bool = True,
    ) -> None:
        """Read and draw.

        Args:
            system_metrics_reader: a reader, or the location of a profile.
            framework_metrics_reader: a reader, or the location of a profile; default: the profile of the first.
            starttime: start of the range, microseconds since the epoch.
            endtime: end of the range, microseconds since the epoch; default: the end of the data.
            select_dimensions: regular expressions for dimensions.
            select_events: regular expressions for devices (`cpu0`, `gpu1`, `total` …).
            x: number of points visible at first.
            show_workers: draw one chart per device and node instead of one per device.

        Raises:
            ConfigError: a pattern is not a valid regular expression.
            SourceError: the profile does not exist or cannot be reached.
        """
        super().__init__()
        self.system_metrics_reader = system_reader(system_metrics_reader)
        other = self.system_metrics_reader.source if framework_metrics_reader is None else framework_metrics_reader
        self.framework_metrics_reader = framework_reader(other)
        self.select_dimensions, self.select_events = select_dimensions, select_events
        self.show_workers, self.width = show_workers, x
        self.starttime = starttime
        self.last_timestamp_system_metrics = until_us(self.system_metrics_reader, endtime)
        self.figures: list[Any] = []
        self.sources: dict[str, dict[str, Any]] = {}
        self.system_metrics: Series = self._series()
        self.create_plot()
        self.show()

    def create_plot(self) -> None:
        """Draw the charts."""
        self.figures, self.sources = [], {}
        log_unmatched_metrics(self.system_metrics, self.select_dimensions, self.select_events)
        self.div = Div(width=250, height=100)
        x_range: Any = None
        for dimension in chosen(self.system_metrics, self.select_dimensions):
            devices = self.system_metrics[dimension]
            for device in chosen(devices, self.select_events):
                values = devices[device]
                source = ColumnDataSource(_points(values))
                self.sources.setdefault(dimension, {})[device] = source
                x = source.data["x"]
                plot = self._figure(f"{dimension}_{device}", source, x_range or (x[max(0, len(x) - self.width)], x[-1]))
                x_range = plot.x_range
                if is_percent(dimension, device):
                    plot.y_range.start, plot.y_range.end = 0, 102
                self.figures.append(plot)
        shown = self.figures or [Div(text="No system metrics in this range.")]
        self.layout = row(column(shown), self.div)

    def _figure(self, title: str, source: Any, x_range: Any) -> Any:
        plot = figure(
            title=plain(title),
            height=200,
            width=WIDTH,
            x_range=x_range,
            x_axis_type="datetime",
            x_axis_label="time, UTC",
            tools=TOOLS,
        )
        plot.grid.visible = False
        plot.line("x", "y", source=source, line_color="blue")
        points = plot.scatter("x", "y", source=source, fill_alpha=0, line_width=0, size=4)
        plot.add_tools(HoverTool(renderers=[points], tooltips=_TIPS, formatters={"@x": "datetime"}))
        plot.js_on_event("selectiongeometry", CustomJS(args={"source": source, "div": self.div}, code=_SELECTED))
        return plot

    def find_time_annotations(self, indexes: Sequence[int]) -> dict[str, float]:
        """Print the time spent in the events between two points of the chart of CPU utilization, greatest first, 40 at most.

        Args:
            indexes: indices of the first and last point, as the charts show them.

        Returns:
            Milliseconds by name, followed by the step if there is one (`Forward_7`).

        Raises:
            ConfigError: an index is negative.
        """
        limits = self._limits(indexes)
        if limits is None:
            print("No selection made")
            return {}
        print(f"Selected timerange: {limits[0]} to {limits[1]}")
        spent = time_annotations(self._events(*limits))
        for name, total in islice(spent.items(), MAX_SPENT):
            print(f"Spent {total} ms (cumulative time) in {name}")
        if len(spent) > MAX_SPENT:
            rest = round(sum(islice(spent.values(), MAX_SPENT, None)), 3)
            print(f"… and {len(spent) - MAX_SPENT:,} more, {rest} ms in all; the dict that is returned has them all")
        return spent

    def plot_detailed_profiler_data(self, indexes: Sequence[int]) -> DetailedChart | None:
        """Draw data loading and all other events between two points of the chart of CPU utilization.

        Args:
            indexes: indices of the first and last point, as the charts show them.

        Returns:
            The chart; None if nothing is selected.

        Raises:
            ConfigError: an index is negative.
        """
        limits = self._limits(indexes)
        if limits is None:
            print("No selection made")
            return None
        print(f"Selected timerange: {limits[0]} to {limits[1]}")
        return DetailedChart(self._events(*limits))

    def update_data(self, current_timestamp: float) -> None:
        """Add measurements since the last update, up to a time in microseconds since the epoch."""
        before = sum(len(values) for devices in self.system_metrics.values() for values in devices.values())
        known = self.last_timestamp_system_metrics
        self.last_timestamp_system_metrics = until_us(self.system_metrics_reader, current_timestamp)
        self.system_metrics = self._series()
        after = sum(len(values) for devices in self.system_metrics.values() for values in devices.values())
        print(
            f"Found {after - before} new system metrics events from timestamp_in_us:{known} to timestamp_in_us:{current_timestamp}"
        )
        for dimension, devices in self.sources.items():
            for device, source in devices.items():
                values = self.system_metrics[dimension][device]
                source.data = _points(values)
        ends = [values for devices in self.sources.values() for values in (each.data["x"] for each in devices.values())]
        if ends and self.figures:
            longest = max(ends, key=len)
            self.figures[0].x_range.start = longest[max(0, len(longest) - self.width)]
            self.figures[0].x_range.end = longest[-1]
        self.push()

    def _series(self) -> Series:
        system: SystemColumns = self.system_metrics_reader.columns()
        rows = system_rows(system, self.starttime, self.last_timestamp_system_metrics)
        return system_series(system[rows], by_node=self.show_workers)

    def _events(self, start_s: float, end_s: float) -> EventColumns:
        events: EventColumns = self.framework_metrics_reader.columns()
        rows = event_rows(events, start_s * 1e6, end_s * 1e6) & training_events(events)
        chosen_events: EventColumns = events[rows]
        return chosen_events

    def _limits(self, indexes: Sequence[int]) -> tuple[float, float] | None:
        """Return the times of the first and last index in the longest series of CPU utilization, or of any metric."""
        if not len(indexes):
            return None
        totals = [devices[TOTAL] for key, devices in self.system_metrics.items() if key.startswith("CPUUtilization")]
        totals = totals or [values for devices in self.system_metrics.values() for values in devices.values()]
        if not totals:
            return None
        values = max(totals, key=len)
        first, last = int(min(indexes)), int(max(indexes))
        if not 0 <= first <= last:
            raise ConfigError(f"{list(indexes)} are not indices of points; use [first, last], both 0 or greater")
        return float(values[min(first, len(values) - 1), 0]), float(values[min(last, len(values) - 1), 0])


def _points(values: Floats) -> dict[str, Floats]:
    """Convert rows of time (seconds) and value for a chart with a date axis (milliseconds)."""
    return {"x": values[:, 0] * 1e3, "y": values[:, 1]}


class DetailedChart(Chart):
    """Bars over time: data loading by worker, and all other events by phase.

    Attributes:
        loading: bars of data loading.
        others: bars of all other events.
    """

    title = "Events"

    def __init__(self, events: EventColumns) -> None:
        super().__init__()
        events = events[~events.instants]
        is_loading = (events.num_workers >= 0) | events.args.mask(lambda text: '"bytes_fetched"' in text)
        loading, others = events[is_loading], events[~is_loading]
        workers = [f"worker {number}" if number >= 0 else "main process" for number in loading.worker_id.tolist()]
        self.loading = bars_of(loading, workers, MAX_BARS)
        self.others = bars_of(others, [others.phase.values[code] for code in others.phase.codes.tolist()], MAX_BARS)
        shown = [
            self._figure(self.loading, "Data loading", "black"),
            self._figure(self.others, "Framework metrics", "blue"),
        ]
        self.layout = column(shown)
        self.show()

    @staticmethod
    def _figure(bars: Bars, title: str, colour: str) -> Any:
        left_out = f" (the {len(bars.row)} longest of {len(bars.row) + bars.left_out})" if bars.left_out else ""
        height = 120 + 22 * max(1, len(bars.rows))
        plot = figure(
            height=height,
            width=WIDTH,
            title=title + left_out,
            x_axis_type="datetime",
            tools="crosshair,pan,reset,save,xwheel_zoom",
        )
        data = {
            "left": bars.start_ms,
            "right": bars.end_ms,
            "top": bars.row + 0.9,
            "bottom": bars.row + 0.1,
            "metric": bars.metric,
        }
        plot.quad(
            left="left", right="right", top="top", bottom="bottom", source=ColumnDataSource(data), fill_color=colour, fill_alpha=0.2,
            line_color=None,
        )  # fmt: skip
        plot.add_tools(HoverTool(tooltips=_BAR_TIPS, formatters={"@left": "datetime", "@right": "datetime"}))
        plot.yaxis.ticker = (np.arange(len(bars.rows)) + 0.5).tolist()
        plot.yaxis.major_label_overrides = {number + 0.5: plain(name) for number, name in enumerate(bars.rows)}
        plot.xaxis.axis_label = "time, UTC"
        return plot
