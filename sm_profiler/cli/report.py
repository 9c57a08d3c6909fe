"""`sm-profiler report`: verdict on the terminal; HTML, notebook and JSON in a folder."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from sm_profiler.cli.arguments import SOURCE_HELP, newest_run, read_json
from sm_profiler.cli.command import BAD, DONE
from sm_profiler.printable import printable

if TYPE_CHECKING:
    from sm_profiler.report import Report

EXAMPLES = """\
examples:
  sm-profiler report sm-profiler                      the newest local run
  sm-profiler report my-training-job --follow         a job of SageMaker while it runs
  sm-profiler report s3://bucket/job/profiler-output --fail-on issues
"""


class Command:
    """Reads a profile in one pass, writes the report and prints the verdict."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        parser.epilog = EXAMPLES
        parser.add_argument("source", metavar="SOURCE", help=SOURCE_HELP)
        parser.add_argument(
            "--out", metavar="DIR", help="folder or s3:// URI for the report (default: ./profiler-report/<job>)"
        )
        parser.add_argument(
            "--parameters", type=Path, metavar="FILE", help='JSON of rule parameters: {"<RuleName>_<parameter>": value}'
        )
        parser.add_argument(
            "--compat", choices=["service"], help="reproduce the managed service's numbers, known errors included"
        )
        parser.add_argument("--follow", action="store_true", help="update the report until the job ends")
        parser.add_argument("--strict", action="store_true", help="fail if any record cannot be read")
        parser.add_argument("--fail-on", choices=["issues"], help="exit with 1 if the verdict names a problem")
        parser.add_argument(
            "--instance-type", metavar="TYPE", help="the job's instance type, to estimate the lost money"
        )
        parser.add_argument(
            "--prices",
            type=Path,
            metavar="FILE",
            help="JSON of dollars per hour by instance type, in place of the built-in table",
        )

    def run(self, options: Namespace) -> int:
        """Build, write and print the report."""
        from sm_profiler.report import JobInfo, build_report
        from sm_profiler.report.build import job_name
        from sm_profiler.source import open_source

        parameters = read_json(options.parameters) if options.parameters else None
        prices = read_json(options.prices) if options.prices else None
        source = open_source(newest_run(options.source), strict=options.strict)
        out = options.out or os.path.join("profiler-report", job_name(source.uri))  # noqa: PTH118 - may be an s3:// URI elsewhere
        job = JobInfo(instance_type=options.instance_type, prices=prices)

        def write_update(report: Report) -> None:
            write(report, out)
            print(f"sm-profiler: report updated: {report.verdict.kind.value}", file=sys.stderr, flush=True)

        report = build_report(
            source,
            parameters=parameters,
            compat=options.compat,
            job=job,
            follow=options.follow,
            on_report=write_update if options.follow else None,
        )
        page = write(report, out)
        print_summary(report, page)
        kind = report.verdict.kind
        return BAD if options.fail_on and not kind.is_healthy and kind.value != "INCONCLUSIVE" else DONE


def write(report: Report, out: str) -> str:
    """Write the report's files and return the path or URI of its page."""
    from sm_profiler.report import write_report

    write_report(report, out)
    return f"{out.rstrip('/')}/profiler-report.html"


def print_summary(report: Report, page: str) -> None:
    """Print the summary, in colour if the terminal supports it."""
    from sm_profiler.report import terminal_summary

    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    print(f"sm-profiler: {printable(page)}", file=sys.stderr)
    try:
        print(terminal_summary(report, colour), flush=True)
    except BrokenPipeError:  # the reader (`| head`) is done; nothing may be written at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
