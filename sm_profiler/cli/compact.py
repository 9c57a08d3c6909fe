"""`sm-profiler compact`: a profile as Parquet."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

from sm_profiler.cli.command import DONE, add_executor, add_source, newest_run
from sm_profiler.printable import printable

EXAMPLES = """\
examples:
  sm-profiler compact my-training-job --out s3://bucket/profiles
  sm-profiler report s3://bucket/profiles/job=my-training-job
  sm-profiler compact s3://bucket/job/profiler-output --out s3://bucket/profiles --ddl > athena.sql
"""


def add_arguments(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_source(parser)
    parser.add_argument("--out", metavar="DIR", required=True, help="folder or s3:// URI of the dataset")
    parser.add_argument("--job", metavar="NAME", help="name of the job in the dataset (default: from the source)")
    add_executor(parser)
    parser.add_argument("--ddl", action="store_true", help="print the statements that create Athena's tables")


def run(options: Namespace) -> int:
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
    print(
        f"sm-profiler: {printable(done.job)}: {plural(done.files, 'new file')} ({done.read_bytes / 1e6:,.1f} MB) "
        f"written as {plural(done.parts, 'Parquet file')} ({done.written_bytes / 1e6:,.1f} MB){there}{later}",
        file=sys.stderr,
    )
    if options.ddl:
        print(athena_ddl(options.out), end="")
    return DONE
