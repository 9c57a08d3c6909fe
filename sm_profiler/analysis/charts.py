"""`Chart`: base class of charts, which are shown in a notebook or saved as standalone HTML."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sm_profiler.analysis.readers import AlgorithmMetricsReader, ProfileLocation, SystemMetricsReader
from sm_profiler.errors import SourceError

try:
    from bokeh import models, plotting
    from bokeh.embed import file_html
    from bokeh.io import output_notebook, push_notebook, show
    from bokeh.layouts import gridplot
    from bokeh.resources import INLINE
except ImportError as missing:  # pragma: no cover - the extra is installed where the tests run
    raise SourceError("charts need Bokeh: pip install 'sm-profiler[analysis]'") from missing

TOOLS = "crosshair,xbox_select,pan,reset,save,xwheel_zoom"
WIDTH = 1000


# Bokeh's models accept any property, so their types do not help.
figure: Any = plotting.figure
ColumnDataSource: Any = models.ColumnDataSource
Div: Any = vars(models)["Div"]


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
        """Update the chart in the notebook."""
        if self.target is not None:
            push_notebook(handle=self.target)


def in_notebook() -> bool:
    """Return True in a notebook's kernel."""
    shell = sys.modules.get("IPython")
    running = shell.get_ipython() if shell is not None else None
    return running is not None and hasattr(running, "kernel")


def system_reader(reader: SystemMetricsReader | ProfileLocation) -> SystemMetricsReader:
    """Return the reader, or a new one for a location."""
    return reader if isinstance(reader, SystemMetricsReader) else SystemMetricsReader(reader)


def framework_reader(reader: AlgorithmMetricsReader | ProfileLocation) -> AlgorithmMetricsReader:
    """Return the reader, or a new one for a location."""
    return reader if isinstance(reader, AlgorithmMetricsReader) else AlgorithmMetricsReader(reader)


def latest_us(reader: SystemMetricsReader | AlgorithmMetricsReader) -> float:
    """Return the time of the latest data, microseconds since the epoch; 0 if there is none."""
    reader.refresh_event_file_list()
    return float(reader.source.last_timestamp_us or 0)


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


def grid(figures: Sequence[Any]) -> Any:
    """Arrange figures in rows of four; show a note if there are none."""
    return gridplot(list(figures), ncols=4) if figures else Div(text="No data in this range.")
