"""What all charts have in common: they are shown in a notebook, or saved as a page of their own."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sm_profiler.analysis.readers import AlgorithmMetricsReader, SystemMetricsReader, Where
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


# Bokeh's models are typed too loosely to be checked: their classes take any property.
figure: Any = plotting.figure
ColumnDataSource: Any = models.ColumnDataSource
Div: Any = vars(models)["Div"]


class Chart:
    """A drawing that a notebook shows when it is made, and that can be saved.

    Attributes:
        title: what the saved page is called.
        layout: the Bokeh model; None before there is anything to draw.
        target: the notebook's handle of what is shown; None outside of a notebook.
    """

    title = "sm-profiler"

    def __init__(self) -> None:
        self.layout: Any = None
        self.target: Any = None

    def show(self) -> None:
        """Show the chart in the notebook that this runs in; elsewhere nothing happens (`save` writes a page)."""
        if self.layout is not None and in_notebook():
            output_notebook(hide_banner=True)
            self.target = show(self.layout, notebook_handle=True)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the chart as a page that needs nothing else, no network either.

        Raises:
            SourceError: there is nothing to draw yet, or the file cannot be written.
        """
        if self.layout is None:
            raise SourceError("this chart has nothing to show yet")
        page = Path(path)
        try:
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(file_html(self.layout, INLINE, self.title), encoding="utf-8")
        except OSError as error:
            raise SourceError(f"{page} cannot be written: {error.strerror}") from error
        return page

    def push(self) -> None:
        """Bring what has changed to the notebook."""
        if self.target is not None:
            push_notebook(handle=self.target)


def in_notebook() -> bool:
    """Whether a notebook's kernel runs this."""
    shell = sys.modules.get("IPython")
    running = shell.get_ipython() if shell is not None else None
    return running is not None and hasattr(running, "kernel")


def system_reader(reader: SystemMetricsReader | Where) -> SystemMetricsReader:
    """The reader itself, or one of the place that is named."""
    return reader if isinstance(reader, SystemMetricsReader) else SystemMetricsReader(reader)


def framework_reader(reader: AlgorithmMetricsReader | Where) -> AlgorithmMetricsReader:
    """The reader itself, or one of the place that is named."""
    return reader if isinstance(reader, AlgorithmMetricsReader) else AlgorithmMetricsReader(reader)


def latest_us(reader: SystemMetricsReader | AlgorithmMetricsReader) -> float:
    """The end of what there is, microseconds since the epoch."""
    reader.refresh_event_file_list()
    return float(reader.source.last_timestamp_us or 0)


def histogram_figure(title: str, source: Any, size: tuple[int, int]) -> Any:
    """Bars from the columns top, left and right."""
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
    """A text of the data as a label: Bokeh would take what stands between `$$` for mathematics, and fetch what draws it."""
    for mark in ("$$", r"\[", r"\("):
        text = text.replace(mark, " ".join(mark))
    return text


def grid(figures: Sequence[Any]) -> Any:
    """Figures four in a row, or a line that says that there is nothing."""
    return gridplot(list(figures), ncols=4) if figures else Div(text="Nothing was measured that could be shown.")
