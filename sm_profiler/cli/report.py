"""`sm-profiler report`: judge a profile; verdict on the terminal, HTML, notebook and JSON in a folder."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sm_profiler.cli.command import BAD, DONE
from sm_profiler.errors import ConfigError

if TYPE_CHECKING:
    from sm_profiler.report import Report


class Command:
    """Reads a profile in one pass, writes the report and says the verdict."""

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument(
            "source",
            metavar="SOURCE",
            help="a folder (of several runs, the newest), an s3:// URI of a profiler-output, or a training job's name",
        )
        parser.add_argument(
            "--out", metavar="DIR", help="folder or s3:// URI for the report (default: ./profiler-report/<job>)"
        )
        parser.add_argument(
            "--parameters", type=Path, metavar="FILE", help='JSON of rule parameters: {"<RuleName>_<parameter>": value}'
        )
        parser.add_argument(
            "--compat", choices=["service"], help="the managed service's numbers, its known faults included"
        )
        parser.add_argument("--follow", action="store_true", help="keep the report current until the job is over")
        parser.add_argument("--strict", action="store_true", help="fail if any record cannot be read")
        parser.add_argument("--fail-on", choices=["issues"], help="exit with 1 if the verdict names a problem")
        parser.add_argument(
            "--instance-type", metavar="TYPE", help="what the job ran on, for the estimate of lost money"
        )
        parser.add_argument(
            "--prices",
            type=Path,
            metavar="FILE",
            help="JSON of dollars an hour by instance type, instead of the built-in table",
        )

    def run(self, options: Namespace) -> int:
        """Build, write, tell."""
        from sm_profiler.report import JobInfo, build_report
        from sm_profiler.report.build import name_of
        from sm_profiler.source import open_source

        parameters = read_json(options.parameters) if options.parameters else None
        prices = read_json(options.prices) if options.prices else None
        source = open_source(newest_run(options.source), strict=options.strict)
        out = options.out or os.path.join("profiler-report", name_of(source.uri))  # noqa: PTH118 - may be an s3:// URI elsewhere
        job = JobInfo(instance_type=options.instance_type, prices=prices)

        def current(report: Report) -> None:
            _write(report, out)
            print(f"sm-profiler: report brought up to date: {report.verdict.kind.value}", file=sys.stderr, flush=True)

        report = build_report(
            source,
            parameters=parameters,
            compat=options.compat,
            job=job,
            follow=options.follow,
            on_report=current if options.follow else None,
        )
        where = _write(report, out)
        tell(report, where)
        return (
            BAD
            if options.fail_on and not report.verdict.kind.is_healthy and report.verdict.kind.value != "INCONCLUSIVE"
            else DONE
        )


def newest_run(where: str) -> str:
    """The newest run in a folder of runs, said on standard error; `where` itself if it is anything else."""
    folder = Path(where)
    if "://" in where or not folder.is_dir() or _newest_file(folder):
        return where
    times = {run: time for run in folder.iterdir() if run.is_dir() and (time := _newest_file(run))}
    if not times:
        return where
    run = max(times, key=lambda each: (times[each], each.name))
    if len(times) > 1:
        print(f"sm-profiler: {where} holds {len(times)} runs; this is the newest: {run}", file=sys.stderr)
    else:
        print(f"sm-profiler: {where} holds one run: {run}", file=sys.stderr)
    return str(run)


def _newest_file(run: Path) -> float:
    """When the profile in a run's folder was last written to, in seconds since the epoch; 0 if it has none."""
    kinds = [place / kind for place in (run, run / "profiler-output") for kind in ("system", "framework")]
    return max((file.stat().st_mtime for kind in kinds for file in kind.rglob("*") if file.is_file()), default=0.0)


def _write(report: Report, out: str) -> str:
    from sm_profiler.report import write_report

    write_report(report, out)
    return f"{out.rstrip('/')}/profiler-report.html"


def tell(report: Report, where: str) -> None:
    """Print the summary, in colour where the terminal has it."""
    from sm_profiler.report import terminal_summary

    colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    print(f"sm-profiler: {where}", file=sys.stderr)
    try:
        print(terminal_summary(report, colour), flush=True)
    except BrokenPipeError:  # `| head` has seen enough; nothing more may be written at the end of the process either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file the user named."""
    try:
        found = json.loads(path.read_text("utf-8-sig"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: a JSON object is expected")
    return found
