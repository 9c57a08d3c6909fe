"""`sm-profiler compact`, `upload` and `merge-timeline`: a profile's files in another place or form."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from sm_profiler.cli.main import BAD, DONE, add_executor, add_source, newest_run
from sm_profiler.printable import printable, say

COMPACT_EXAMPLES = """\
examples:
  sm-profiler compact my-training-job --out s3://bucket/profiles
  sm-profiler report s3://bucket/profiles/job=my-training-job
  sm-profiler compact s3://bucket/job/profiler-output --out s3://bucket/profiles --ddl > athena.sql
"""

UPLOAD_EXAMPLES = """\
examples:
  sm-profiler upload /tmp/sm-profiler/me/train-101
  sm-profiler upload profile --to s3://bucket/profiles/train-101/profiler-output
"""


def add_compact(parser: ArgumentParser) -> None:
    parser.epilog = COMPACT_EXAMPLES
    add_source(parser)
    parser.add_argument("--out", metavar="DIR", required=True, help="folder or s3:// URI of the dataset")
    parser.add_argument("--job", metavar="NAME", help="name of the job in the dataset (default: from the source)")
    add_executor(parser)
    parser.add_argument("--ddl", action="store_true", help="print the statements that create Athena's tables")


def run_compact(options: Namespace) -> int:
    from sm_profiler.compact import athena_ddl, compact
    from sm_profiler.formatting import plural
    from sm_profiler.report.build import job_name
    from sm_profiler.source import open_source
    from sm_profiler.storage import open_storage

    source = open_source(newest_run(options.source), cache=False)
    job = options.job or getattr(source.storage, "job", None) or job_name(source.origin)
    done = compact(source, open_storage(options.out), job=job, executor=options.executor)
    later = f"; {plural(done.left, 'file')} could not be read or may still grow" if done.left else ""
    there = f"; {plural(done.unchanged, 'file')} had been added before" if done.unchanged else ""
    say(
        f"{printable(done.job)}: {plural(done.files, 'new file')} ({done.read_bytes / 1e6:,.1f} MB) "
        f"written as {plural(done.parts, 'Parquet file')} ({done.written_bytes / 1e6:,.1f} MB){there}{later}"
    )
    if options.ddl:
        print(athena_ddl(options.out), end="")
    return DONE


def add_upload(parser: ArgumentParser) -> None:
    parser.epilog = UPLOAD_EXAMPLES
    parser.add_argument("folder", type=Path, metavar="DIR", help="the profile's folder")
    parser.add_argument(
        "--to", default="", metavar="URI", help="s3:// URI of the profiler-output (default: that of the job)"
    )


def run_upload(options: Namespace) -> int:
    from sm_profiler.formatting import plural
    from sm_profiler.monitor.left_profile import upload_left

    done = upload_left(options.folder, options.to)
    failed = f", {done.failed} failed: {printable(done.error)}" if done.failed else ""
    print(
        f"{plural(done.files, 'file')} uploaded to {printable(done.uri)}, {done.there:,} uploaded before{failed}; "
        f"{printable(done.markers) or 'end markers written'}"
    )
    return BAD if done.failed else DONE


def add_merge_timeline(parser: ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument(
        "--out", metavar="FILE", required=True, help="trace to write; compressed if the name ends in .gz"
    )
    add_executor(parser)


def run_merge_timeline(options: Namespace) -> int:
    from sm_profiler.gpu_traces.timeline import export_traces
    from sm_profiler.report.recordings import holds_only_traces
    from sm_profiler.report.write import export_timeline
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
    say(f"{plural(done.events, 'event')} of {processes} in {printable(options.out)}{clocks}{left_out}")
    for name, shift in done.shift_us.items():
        say(f"{printable(name)} is shifted by {shift / 1e3:.3g} ms")
    print("open it at https://ui.perfetto.dev or in chrome://tracing")
    return DONE
