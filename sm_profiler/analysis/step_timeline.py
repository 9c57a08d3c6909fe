"""`StepTimelineChart`: durations of steps over time."""

from __future__ import annotations

from bokeh.models import HoverTool

from sm_profiler.analysis.chart_data import StepSeries, steps_of
from sm_profiler.analysis.charts import WIDTH, Chart, ColumnDataSource, figure, framework_reader, latest_us
from sm_profiler.analysis.readers import AlgorithmMetricsReader, ProfileLocation
from sm_profiler.analysis.selection import event_rows
from sm_profiler.errors import SourceError


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
