"""`sm-profiler compare`: two runs side by side, for people and for CI."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from sm_profiler.cli.main import BAD, DONE, SOURCE_HELP, add_executor, newest_run
from sm_profiler.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from sm_profiler.render.words import Summary
    from sm_profiler.report.compare import Comparison
    from sm_profiler.report.trace_compare import TraceComparison

EXAMPLE = """\
example, in CI:
  sm-profiler compare s3://bucket/main/profiler-output s3://bucket/branch/profiler-output --fail-on 'regression>5%'
traces of torch.profiler:
  sm-profiler compare traces/before traces/after --out comparison
"""


def add_compare(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLE
    parser.add_argument("before", metavar="A", help=f"the earlier run: {SOURCE_HELP}")
    parser.add_argument("after", metavar="B", help="the later run, given the same way")
    parser.add_argument(
        "--fail-on",
        metavar="regression>5%",
        help="exit with 1 if B's steps (samples, if the batch sizes differ) take more than that much longer, beyond random variation; "
        "with 2 if the runs are not comparable",
    )
    add_executor(parser)
    parser.add_argument("--out", metavar="DIR", help="also write compare.html and compare.json to this folder")
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="also write a summary to FILE, for a pull request"
    )


def run_compare(options: Namespace) -> int:
    from sm_profiler.diagnosis import is_table
    from sm_profiler.report.compare import RegressionLimit
    from sm_profiler.report.recordings import holds_only_traces
    from sm_profiler.report.report_json import plain
    from sm_profiler.storage import open_storage

    limit = RegressionLimit.parse(options.fail_on) if options.fail_on else None
    if any(is_table(where) for where in (options.before, options.after)):
        raise ConfigError(
            "tables of times cannot be compared, only profiles and traces of torch.profiler: run 'sm-profiler report' on each table"
        )
    of_traces = [holds_only_traces(where) for where in (options.before, options.after)]
    if any(of_traces) and not all(of_traces):
        raise ConfigError("one of the two is a profile and the other one traces of torch.profiler: not comparable")
    if options.executor and all(of_traces):
        raise ConfigError("--executor reads profiles; traces of torch.profiler are compared in one process")
    compared = (
        compared_traces(options.before, options.after)
        if all(of_traces)
        else compared_profiles(options.before, options.after, options.executor)
    )
    failed = limit is not None and limit.is_exceeded_by(compared.found)
    if options.out:
        storage = open_storage(options.out)
        storage.write("compare.json", (json.dumps(plain(compared.found.as_dict()), indent=1) + "\n").encode())
        storage.write("compare.html", compared.page.encode())
    if options.markdown:
        write_markdown(options.markdown, compared.summary, options.fail_on if failed else "")
    print(compared.text)
    if limit is not None and compared.found.step is None:
        raise ConfigError(f"--fail-on {options.fail_on} could not be checked: the runs are not comparable")
    return BAD if failed else DONE


@attrs.frozen(eq=False)
class Compared:
    """A comparison, and how it is shown.

    Attributes:
        text: for the terminal.
        page: as HTML.
        summary: for Markdown.
    """

    found: Comparison | TraceComparison
    text: str
    page: str
    summary: Summary


def compared_profiles(before: str, after: str, executor: str | None) -> Compared:
    from sm_profiler.report import build_report
    from sm_profiler.report.compare import compare, render_comparison, summarize_comparison, terminal_comparison
    from sm_profiler.source import open_source

    sources = open_source(newest_run(before)), open_source(newest_run(after))
    found = compare(*(build_report(source, executor=executor) for source in sources))
    return Compared(found, terminal_comparison(found), render_comparison(found), summarize_comparison(found))


def compared_traces(before: str, after: str) -> Compared:
    """Compare two sources of torch.profiler's traces."""
    from sm_profiler.report.trace_compare import (
        compare_traces,
        render_trace_comparison,
        summarize_trace_comparison,
        terminal_trace_comparison,
    )

    found = compare_traces(before, after)
    page = render_trace_comparison(found)
    return Compared(found, terminal_trace_comparison(found), page, summarize_trace_comparison(found))


def write_markdown(path: Path, summary: Summary, failure: str) -> None:
    from sm_profiler.render.words import to_markdown

    try:
        path.write_text(to_markdown(summary, failure), encoding="utf-8")
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from None
