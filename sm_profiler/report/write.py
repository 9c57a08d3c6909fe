"""A report's files: the page, the notebook that redraws it, report.json, one for each rule; a timeline of the whole job."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import attrs
from markupsafe import escape

from sm_profiler.diagnosis.model import Finding, Report
from sm_profiler.formats.columns import EventColumns
from sm_profiler.formats.event_names import HANG
from sm_profiler.formatting import clean, shorten
from sm_profiler.gpu_traces.timeline import add_windows, outside
from sm_profiler.metrics.hang import hang_arguments
from sm_profiler.metrics.scaling.folding import reading_with
from sm_profiler.render.flame import at_line, part_of
from sm_profiler.render.page import render_html
from sm_profiler.render.terminal import terminal_summary
from sm_profiler.render.words import gain_of_finding
from sm_profiler.report.build import build_report
from sm_profiler.report.report_json import to_json
from sm_profiler.rules import write_rule_reports
from sm_profiler.source import open_source
from sm_profiler.storage import Storage, open_storage
from sm_profiler.timeline import Export, timeline_file


def render_notebook(report: Report) -> str:
    """Return the notebook file (nbformat 4.5) as text."""
    cells = [_cell(number, kind, text) for number, (kind, text) in enumerate(_cells(report))]
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return json.dumps({"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"


def _cell(number: int, kind: str, text: str) -> dict[str, Any]:
    cell: dict[str, Any] = {
        "cell_type": kind,
        "id": f"cell-{number}",
        "metadata": {},
        "source": text.splitlines(keepends=True),
    }
    if kind == "code":
        cell |= {"execution_count": None, "outputs": []}
    return cell


def _plain(text: str) -> str:
    """Return text on one line that Markdown shows unchanged."""
    line = " ".join(shorten(clean(text), 400).split())
    return "".join(f"\\{sign}" if sign in r"\`*_{}[]<>#|$!&~" else sign for sign in line)


def _where(finding: Finding) -> str:
    """Return the lines of code behind a finding, as a list."""
    lines = [
        f"- {_plain(at_line(location))} in {_plain(location.function)}: {part_of(finding, location)}"
        for location in finding.where
    ]
    return "\n\n**Where:**\n\n" + "\n".join(lines) if lines else ""


def _cells(report: Report) -> list[tuple[str, str]]:
    main = report.verdict.main
    source = json.dumps(clean(report.source))
    ending = f"**{_plain(report.metrics.ending.sentence)}**\n\n" if report.metrics.ending.sentence else ""
    if report.gpu_traces and not report.metrics.ranks:
        return _cells_of_traces(report, source)
    return [
        ("markdown", f"# {_plain(report.metrics.name)}\n\n{ending}**{main.kind.value}**: {_plain(main.headline)} {_plain(gain_of_finding(main))}{_where(main)}\n\n**Next step:** {_plain(main.next_step)}"),
        ("markdown", "This notebook reads the profile again and redraws the sections of the report. Change and extend it as you like."),
        ("code", f"SOURCE = {source}\n\nimport numpy as np\nimport pandas as pd\nfrom sm_profiler.source import open_source\nfrom sm_profiler.report import build_report\n\nreport = build_report(open_source(SOURCE))\nmetrics = report.metrics\nprint(report.verdict.kind.value, '-', report.verdict.main.headline)"),
        ("markdown", "## Where the training loop's time goes\n\nSeconds per process and part of the loop."),
        ("code", "pd.DataFrame({rank.name: rank.seconds for rank in metrics.ranks}).round(3)"),
        ("markdown", "## System and framework metrics as DataFrames"),
        ("code", "from sm_profiler.analysis import PandasFrame\n\nframe = PandasFrame(SOURCE)\nsystem = frame.get_all_system_metrics()\nframework = frame.get_all_framework_metrics()\nsystem.head()"),
        ("code", "framework.head()"),
        ("markdown", "## Training job summary"),
        ("code", "pd.Series({'start': metrics.start, 'end': metrics.end, 'duration in s': metrics.duration, 'initialization in s': metrics.initialization, 'steps per second': metrics.steps_per_second})"),
        ("markdown", "## System usage statistics"),
        ("code", "usage = report.rules.get('OverallSystemUsage', {}).get('Details', {})\nrows = {(node, metric): stats for metric, nodes in usage.items() if isinstance(nodes, dict) for node, stats in nodes.items() if isinstance(stats, dict)}\npd.DataFrame.from_dict(rows, orient='index')"),
        ("markdown", "## Framework metrics summary"),
        ("code", "overall = report.rules.get('OverallFrameworkMetrics', {}).get('Details', {})\nfor part in ('phase', 'forward_backward', 'ratio', 'general', 'horovod'):\n    if isinstance(overall.get(part), dict) and overall[part]:\n        display(pd.Series(overall[part], name=f'{part}, percent').round(2).to_frame())"),
        ("markdown", "## Rules summary"),
        ("code", "pd.DataFrame({name: {key: one[key] for key in ('RuleTriggered', 'Violations', 'Datapoints')} for name, one in report.rules.items()}).T.sort_values('RuleTriggered', ascending=False)"),
        ("markdown", "## Step duration analysis"),
        ("code", "steps = {rank.name: pd.Series(rank.iterations.length, name='seconds') for rank in metrics.ranks}\npd.DataFrame({name: lengths.describe(percentiles=[.5, .95, .99]) for name, lengths in steps.items()})"),
        ("code", "from IPython.display import SVG\nfrom sm_profiler.render.charts import histogram\n\ndef draw(svg):\n    \"\"\"Show one of the report's charts with a simple style in place of the page's.\"\"\"\n    style = '<style>rect{fill:#2f6db5} .f-rose{fill:#c9506b} text{font:12px sans-serif;fill:#59616b} line{stroke:#ddd}</style>'\n    return SVG(str(svg).replace('<svg ', '<svg xmlns=\"http://www.w3.org/2000/svg\" ', 1).replace('</title>', '</title>' + style, 1))\n\nfor name, lengths in list(steps.items())[:4]:\n    if len(lengths) > 1:\n        counts, edges = np.histogram(lengths, 60)\n        chart = histogram(counts, edges, f'Step durations of {name}', 'seconds')\n        if chart:\n            display(draw(chart))"),
        ("markdown", "## Dataloading, GPU use, batch size, bottlenecks, GPU memory\n\nDetails of each rule."),
        ("code", "for rule in ('Dataloader', 'LowGPUUtilization', 'LoadBalancing', 'BatchSize', 'CPUBottleneck', 'IOBottleneck', 'GPUMemoryIncrease'):\n    details = dict(report.rules.get(rule, {}).get('Details', {}))\n    details.pop('bottlenecks', None)\n    print(rule, str(details)[:600])"),
        ("markdown", "## Timeline\n\nMetrics in equal intervals of time; `low` and `high` are the extremes in each."),
        ("code", "series = {(node, metric, device): pd.DataFrame({'mean': data.mean, 'low': data.low, 'high': data.high}, index=pd.to_datetime(data.seconds, unit='s'))\n          for (node, metric, device), data in metrics.system.series.items()}\npd.concat({' '.join(key).strip(): table['mean'] for key, table in series.items()}, axis=1).dropna(how='all').head() if series else 'no system metrics'"),
        ("markdown", "## Data quality"),
        ("code", "import attrs\n\nprint(report.quality.sentence)\npd.DataFrame(map(attrs.asdict, report.quality.rows))"),
    ]  # fmt: skip


def _cells_of_traces(report: Report, source: str) -> list[tuple[str, str]]:
    main = report.verdict.main
    tables = (
        ("Time of each GPU", "temporal_breakdown()"), ("Idle time by reason", "idle_breakdown()"), ("Kernels", "kernels(20)"),
        ("Operators and lines", "operators().head(20)"), ("Waits for the GPU", "synchronizations().head(20)"),
        ("Communication", "communication()"),
        ("Communication that computation hides", "communication_overlap()"), ("Copies", "memory_bandwidth()"), ("Queues of launches", "queue_length()"),
        ("Longest steps", 'steps().assign(length_us=lambda step: step["end_us"] - step["start_us"]).nlargest(5, "length_us")'),
        ("Critical path", 'critical_path().groupby(["rank", "kind"])["duration_us"].sum().to_frame()'),
    )  # fmt: skip
    cells = [
        ("markdown", f"# {_plain(report.metrics.name)}\n\n**{main.kind.value}**: {_plain(main.headline)} {_plain(gain_of_finding(main))}\n\n**Next step:** {_plain(main.next_step)}"),
        ("code", f"from sm_profiler.analysis.gpu import GpuTraces\n\ngpu = GpuTraces({source})"),
    ]  # fmt: skip
    for title, call in tables:
        cells += [("markdown", f"## {title}"), ("code", f"gpu.{call}")]
    return cells


HEIGHT = 900  # pixels


@attrs.frozen(eq=False, repr=False)
class ShownReport:
    """A report that a notebook shows as its page.

    The page is in a frame without rights: its script cannot reach the notebook, and nothing of it reaches the network.

    Attributes:
        report: the report.
        height: of the frame, in pixels.
    """

    report: Report
    height: int = HEIGHT

    def __repr__(self) -> str:
        """Return the terminal's summary, for places that show text."""
        return terminal_summary(self.report)

    def _repr_html_(self) -> str:
        page = escape(render_html(self.report))
        style = f"width: 100%; height: {int(self.height)}px; border: 0"
        return f'<iframe title="Report" sandbox="allow-scripts" style="{style}" srcdoc="{page}"></iframe>'


def show_report(where: str | os.PathLike[str] | Any, *, height: int = HEIGHT, **options: Any) -> ShownReport:
    """Judge a job and show its report in a notebook, as the last expression of a cell.

    Args:
        where: a folder, an s3:// URI, the name of a training job, a `TrainingJob` of the notebook API, or an open source.
        height: of the frame, in pixels.
        options: of `build_report`.

    Raises:
        SourceError: the data cannot be read.
    """
    source = where if hasattr(where, "batches") else open_source(getattr(where, "profiler_s3_output_path", where))
    return ShownReport(build_report(source, **options), height)


HTML, NOTEBOOK, JSON = "profiler-report.html", "profiler-report.ipynb", "report.json"


def write_report(report: Report, where: str | os.PathLike[str] | Storage) -> list[str]:
    """Write profiler-report.html, profiler-report.ipynb, profiler-reports/<Rule>.json and report.json.

    Args:
        report: the report.
        where: a folder, an s3:// URI, or a storage.

    Returns:
        Keys of the files, relative to `where`.

    Raises:
        SourceError: a file cannot be written.
    """
    storage: Any = open_storage(where) if isinstance(where, (str, os.PathLike)) else where
    storage.write(JSON, to_json(report).encode())
    storage.write(HTML, render_html(report).encode())
    storage.write(NOTEBOOK, render_notebook(report).encode())
    return [HTML, NOTEBOOK, JSON, *write_rule_reports(report.rules, storage)]


def export_timeline(source: Any, where: str | Path, *, executor: str | Executor | None = None) -> Export:
    """Write the whole job of a source as one trace; a file named .gz is compressed.

    Args:
        source: the profile.
        where: the file.
        executor: fetch and parse the files in other processes, as in `build_report`; the trace has the same bytes.

    Raises:
        SourceError: the file cannot be written, or the data cannot be read.
    """
    with (
        reading_with(source, executor),
        timeline_file(where, float(source.first_timestamp_us or 0), describe_hangs) as writer,
    ):
        windows = add_windows(writer, source.storage)
        for batch in source.batches(unsettled=True):
            writer.add_events(outside(windows, batch.events))
            writer.add_system(batch.system)
        return writer.finish(list(source.metadata()), source.origin)


def describe_hangs(events: EventColumns) -> list[Mapping[str, Any]] | None:
    """Return the stacks of hangs among events, which nothing else shows; None without any."""
    hangs = events.phase.mask(HANG)
    if not hangs.any():
        return None
    texts = zip(events.args.decode().tolist(), hangs.tolist(), strict=True)
    return [hang_arguments(text) if is_hang else {} for text, is_hang in texts]
