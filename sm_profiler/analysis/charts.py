"""`Chart`: base class of charts, which are shown in a notebook or saved as standalone HTML."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

from sm_profiler.analysis.readers import AlgorithmMetricsReader, ProfileLocation, SystemMetricsReader, any_of, similar
from sm_profiler.errors import SourceError
from sm_profiler.formats.columns import EventColumns, Floats, SystemColumns
from sm_profiler.identity import OWNER_TYPES
from sm_profiler.printable import logger_for

try:
    from bokeh import models, plotting
    from bokeh.embed import file_html
    from bokeh.io import output_notebook, push_notebook, show
    from bokeh.layouts import gridplot
    from bokeh.resources import INLINE
except ImportError as missing:  # pragma: no cover - the extra is installed where the tests run
    raise SourceError("charts need Bokeh: pip install 'sm-profiler[analysis]'") from missing

# dimension (and node) → device → rows of time (seconds since the epoch) and value
Series: TypeAlias = dict[str, dict[str, Floats]]
TOTAL = "total"
_SHOWN = 6  # names in a warning
_log = logger_for(__name__)
PERCENT_DIMENSIONS = ("Utilization", "Memory", "I/OWaitPercentage")

TOOLS = "crosshair,xbox_select,pan,reset,save,xwheel_zoom"
WIDTH = 1000

# Bokeh's models accept any property, so their types do not help.
figure: Any = plotting.figure
ColumnDataSource: Any = models.ColumnDataSource
Div: Any = vars(models)["Div"]


def system_series(system: SystemColumns, *, by_node: bool = True) -> Series:
    """Group system metrics by dimension and device, each sorted by time.

    Every dimension has a device `total`: the mean over its devices at each time.

    Args:
        system: the measurements.
        by_node: separate nodes; dimensions are then named like `CPUUtilization-nodeid:algo-1`.

    Returns:
        Dimension → device → array of shape (measurements, 2): seconds since the epoch, and value.
    """
    found: Series = {}
    for dimension, node in _pairs(system, by_node=by_node):
        rows = system[system.dimension.mask(dimension) & (system.node.mask(node) if by_node else True)]
        devices: dict[str, Floats] = {}
        for device in rows.name.present():
            mine = rows[rows.name.mask(device)]
            devices[device] = _in_order(mine.timestamp, mine.value)
        if dimension:
            at, place = np.unique(rows.timestamp, return_inverse=True)
            devices[TOTAL] = np.column_stack(
                [at, np.bincount(place, rows.value, len(at)) / np.bincount(place, minlength=len(at))]
            )
        found[f"{dimension}-nodeid:{node}" if by_node else dimension] = devices
    return found


def chosen(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """Return the names that match one of the regular expressions anywhere, in their order, without duplicates.

    Raises:
        ConfigError: a pattern is not a valid regular expression.
    """
    matches = any_of(patterns)
    return [name for name in dict.fromkeys(names) if matches(name)]


def log_unmatched(kind: str, names: Iterable[str], patterns: Sequence[str], usual: Sequence[str] = ()) -> None:
    """Log the patterns that match none of the names: an empty chart does not show a typing error.

    Args:
        kind: what the names are.
        names: all that a chart could show; none of them matters if there are none.
        patterns: regular expressions.
        usual: the default patterns, which need not match.
    """
    present = set(names)
    short = {name.partition("-nodeid:")[0] for name in present} - {""}
    for pattern in dict.fromkeys(patterns):
        if present and pattern not in usual and not chosen(present, [pattern]):
            _log.warning("no %s of the profile matches %r%s", kind, pattern, similar(pattern, short) or _some(short))


def _some(names: Collection[str]) -> str:
    first = sorted(names)
    return f"; it has {', '.join(first[:_SHOWN])}{' …' if len(first) > _SHOWN else ''}"


def log_unmatched_metrics(
    series: Series, dimensions: Sequence[str], devices: Sequence[str], usual: Sequence[str] = ()
) -> None:
    """Log the patterns for dimensions and devices of system metrics that match none."""
    log_unmatched("dimension", series, dimensions, usual)
    members = {device for name in chosen(series, dimensions) for device in series[name]}
    log_unmatched("device", members, devices)


def is_percent(dimension: str, device: str) -> bool:
    """Return True for a percentage, which is drawn between 0 and 100."""
    return any(part in dimension for part in PERCENT_DIMENSIONS) or "Percent" in device


def time_annotations(events: EventColumns) -> dict[str, float]:
    """Sum durations in milliseconds by name and step (`Forward_7`), maximum first."""
    events = events[~events.instants]
    spent: dict[str, float] = {}
    keys = np.stack([events.name.codes.astype(np.int64), events.step])
    distinct, place = np.unique(keys, axis=1, return_inverse=True)
    sums = np.bincount(place.ravel(), events.duration_us, distinct.shape[1]) / 1e3
    for (name, step), total in zip(distinct.T.tolist(), sums.tolist(), strict=True):
        text = events.name.values[name]
        spent[text if step < 0 else f"{text}_{step}"] = total
    return dict(sorted(spent.items(), key=lambda item: -item[1]))


@attrs.frozen(eq=False)
class StepSeries:
    """Steps sorted by start; all arrays have one element per step.

    Attributes:
        start_s: seconds since the epoch.
        duration_s: seconds.
        number: number of the step.
        metric: `Step:ModeKeys.TRAIN` …
        node: the process.
    """

    start_s: Floats
    duration_s: Floats
    number: NDArray[np.int64]
    metric: NDArray[np.object_]
    node: NDArray[np.object_]


def steps_of(events: EventColumns) -> StepSeries:
    steps = events[events.name.mask(lambda name: name.startswith("Step")) & (events.step >= 0)]
    steps = steps[np.argsort(steps.start_us, kind="stable")]
    return StepSeries(
        steps.start_us / 1e6, steps.duration_us / 1e6, steps.step, steps.name.decode(), steps.node.decode()
    )


def durations_by_phase(events: EventColumns, *, by_node: bool = True) -> dict[str, Floats]:
    """Return the durations of events in seconds by phase, and by process (`Forward-nodeid:algo-1-0`) if `by_node`."""
    events = events[~events.instants]
    found: dict[str, Floats] = {}
    for phase in events.phase.present():
        mine = events[events.phase.mask(phase)]
        if not by_node:
            found[phase] = mine.duration_us / 1e6
            continue
        for node in mine.node.present():
            found[f"{phase}-nodeid:{node}"] = mine.duration_us[mine.node.mask(node)] / 1e6
    return found


def histogram(values: Floats, edges: Floats) -> NDArray[np.int64]:
    """Count the values between consecutive edges; NaN counts nowhere."""
    return np.histogram(values, bins=edges)[0].astype(np.int64)


def duration_edges(values: Floats) -> Floats:
    """Return 51 equidistant edges from the minimum to two standard deviations above the median."""
    low, high = float(np.min(values)), float(np.median(values) + 2 * np.std(values))
    high = max(high, low + 1e-9)
    return np.linspace(low, high, 51)


@attrs.frozen(eq=False)
class Bars:
    """Spans drawn as bars in rows.

    Attributes:
        row: index of each bar's row.
        start_ms, end_ms: milliseconds since the epoch.
        metric: name of each bar.
        rows: names of the rows.
        left_out: number of spans that were left out.
    """

    row: NDArray[np.int64]
    start_ms: Floats
    end_ms: Floats
    metric: NDArray[np.object_]
    rows: tuple[str, ...]
    left_out: int = 0


def bars_of(events: EventColumns, row_names: Sequence[str], limit: int) -> Bars:
    """Place spans in the rows named by `row_names`, one name per span; keep only the `limit` longest."""
    rows = {name: number for number, name in enumerate(dict.fromkeys(row_names))}
    number = np.array([rows[name] for name in row_names], np.int64)
    kept = np.arange(len(events))
    if len(events) > limit:
        kept = np.sort(np.argsort(-events.duration_us, kind="stable")[:limit])
    part = events[kept]
    return Bars(
        number[kept], part.start_us / 1e3, part.end_us / 1e3, part.name.decode(), tuple(rows), len(events) - len(kept)
    )


@attrs.frozen(eq=False)
class HeatmapRows:
    """Rows of a heat map.

    Attributes:
        values: percent, shape (rows, measurements); NaN beyond the end of a shorter row.
        names: names of the rows.
    """

    values: Floats
    names: tuple[str, ...]


def heat_rows(series: Series, dimensions: Sequence[str], devices: Sequence[str]) -> HeatmapRows:
    """Return the selected metrics, one per row; metrics other than percentages are scaled to their maximum."""
    wanted_dimensions, found = set(chosen(series, dimensions)), []
    names = []
    for dimension, members in series.items():
        if dimension not in wanted_dimensions:
            continue
        for device in chosen(members, devices):
            values = members[device][:, 1]
            maximum = values.max() if len(values) else 0
            found.append(values if is_percent(dimension, device) or not maximum else values / maximum * 100)
            names.append(f"{dimension}_{device}")
    width = max(map(len, found), default=0)
    table = np.full((len(found), width), np.nan)
    for row, values in enumerate(found):
        table[row, : len(values)] = values
    return HeatmapRows(table, tuple(names))


def _pairs(system: SystemColumns, *, by_node: bool) -> list[tuple[str, str]]:
    metrics = ~system.type.mask(lambda kind: kind in OWNER_TYPES)
    nodes = system.node.present() if by_node else [""]
    return [
        (dimension, node)
        for dimension in system.dimension[metrics].present()
        for node in nodes
        if not by_node or (system.dimension.mask(dimension) & system.node.mask(node)).any()
    ]


def _in_order(times: Floats, values: Floats) -> Any:
    order = np.argsort(times, kind="stable")
    return np.column_stack([times[order], values[order]])


class Chart:
    """A chart that a notebook shows when it is created, and that can be saved.

    Attributes:
        title: title of the saved page.
        layout: the Bokeh model; None until something has been drawn.
        target: the notebook's handle of the shown chart; None outside of a notebook.
    """

    title = "sm-profiler"

    def __init__(self) -> None:
        self.layout: Any = None
        self.target: Any = None

    def show(self) -> None:
        """Show the chart if this runs in a notebook; use `save` elsewhere."""
        if self.layout is not None and in_notebook():
            output_notebook(hide_banner=True)
            self.target = show(self.layout, notebook_handle=True)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the chart as a standalone HTML page that needs no network.

        Args:
            path: the HTML file; missing folders are created.

        Returns:
            The path of the file.

        Raises:
            SourceError: nothing has been drawn yet, or the file cannot be written.
        """
        if self.layout is None:
            raise SourceError("nothing has been drawn yet; call plot() first")
        page = Path(path)
        try:
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(file_html(self.layout, INLINE, self.title), encoding="utf-8")
        except OSError as error:
            raise SourceError(f"{page} cannot be written: {error.strerror}") from error
        return page

    def push(self) -> None:
        if self.target is not None:
            push_notebook(handle=self.target)


def in_notebook() -> bool:
    shell = sys.modules.get("IPython")
    running = shell.get_ipython() if shell is not None else None
    return running is not None and hasattr(running, "kernel")


def system_reader(reader: SystemMetricsReader | ProfileLocation) -> SystemMetricsReader:
    return reader if isinstance(reader, SystemMetricsReader) else SystemMetricsReader(reader)


def framework_reader(reader: AlgorithmMetricsReader | ProfileLocation) -> AlgorithmMetricsReader:
    return reader if isinstance(reader, AlgorithmMetricsReader) else AlgorithmMetricsReader(reader)


def latest_us(reader: SystemMetricsReader | AlgorithmMetricsReader) -> float:
    """Return the time of the latest data, microseconds since the epoch; 0 if there is none."""
    reader.refresh_event_file_list()
    return float(reader.source.last_timestamp_us or 0)


def until_us(reader: SystemMetricsReader | AlgorithmMetricsReader, endtime: float | None) -> float:
    """Return the end of a range to draw: the end of the data by default.

    That is also meant by the time of a job's only file, which readers return as that of the latest: a file of system metrics
    is named by the start of its minute, before which there is nothing.
    """
    latest = latest_us(reader)
    only = reader.get_timestamp_of_latest_available_file() == reader.get_timestamp_of_first_available_file() == endtime
    return latest if endtime is None or only else endtime


def histogram_figure(title: str, source: Any, size: tuple[int, int]) -> Any:
    """Draw bars from the columns top, left and right."""
    plot = figure(width=size[0], height=size[1], tools="pan,reset,save,xwheel_zoom")
    plot.quad(
        top="top",
        bottom=0,
        left="left",
        right="right",
        source=source,
        fill_color="navy",
        line_color="white",
        fill_alpha=0.5,
    )
    plot.y_range.start = 0
    plot.xaxis.axis_label = plain(title)
    plot.yaxis.axis_label = "occurrences"
    return plot


def plain(text: str) -> str:
    """Escape text for a label: Bokeh renders text between `$$` as mathematics and loads MathJax for it."""
    for mark in ("$$", r"\[", r"\("):
        text = text.replace(mark, " ".join(mark))
    return text


def grid(figures: Sequence[Any], reader: SystemMetricsReader | AlgorithmMetricsReader) -> Any:
    """Arrange figures in rows of four; show which times there are if there are none."""
    if figures:
        return gridplot(list(figures), ncols=4)
    first, last = reader.get_timestamp_of_first_available_file(), latest_us(reader)
    known = f" The files are of {first:.0f} to {last:.0f}, in microseconds since the epoch." if last else ""
    return Div(text=f"No data in this range.{known}")
