"""`sm-profiler merge-timeline`: one trace of a whole job for Perfetto or chrome://tracing."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from sm_profiler.cli.command import DONE, add_executor, add_source, newest_run
from sm_profiler.printable import printable


def add_arguments(parser: ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument(
        "--out", metavar="FILE", required=True, help="trace to write; compressed if the name ends in .gz"
    )
    add_executor(parser)


def run(options: Namespace) -> int:
    from sm_profiler.gpu_traces.timeline import export_traces
    from sm_profiler.report.recordings import holds_only_traces
    from sm_profiler.report.timeline_export import export_timeline
    from sm_profiler.source import open_source

    if holds_only_traces(options.source):
        done = export_traces(options.source, options.out)
    else:
        source = open_source(newest_run(options.source), cache=not options.executor)
        done = export_timeline(source, options.out, executor=options.executor)
    error = max(done.clock_error_us.values(), default=None)
    clocks = f"; clocks agree within {error / 1e3:.3g} ms" if error is not None else ""
    left_out = f"; {done.left_out:,} overlapping events left out" if done.left_out else ""
    from sm_profiler.formatting import plural

    processes = "1 process" if done.processes == 1 else f"{done.processes:,} processes"
    print(
        f"sm-profiler: {plural(done.events, 'event')} of {processes} in {printable(options.out)}{clocks}{left_out}",
        file=sys.stderr,
    )
    for name, shift in done.shift_us.items():
        print(f"sm-profiler: {printable(name)} is shifted by {shift / 1e3:.3g} ms", file=sys.stderr)
    print("open it at https://ui.perfetto.dev or in chrome://tracing")
    return DONE
