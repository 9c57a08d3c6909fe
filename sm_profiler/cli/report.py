"""`sm-profiler report`: verdict on the terminal; HTML, notebook and JSON in a folder."""

from __future__ import annotations

import os
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sm_profiler.cli.main import (
    BAD,
    DONE,
    add_executor,
    add_prices,
    add_source,
    has_colours,
    newest_run,
    priced_job,
    read_json,
)
from sm_profiler.cli.rules import add_job_arguments, rule_image
from sm_profiler.errors import ConfigError, ProfilerError, SourceError
from sm_profiler.monitor.run_state import read_state
from sm_profiler.printable import printable, say
from sm_profiler.source.opening import NoProfilerDataError

if TYPE_CHECKING:
    from sm_profiler.report import JobInfo, Report
    from sm_profiler.serve.reading import JobReader
    from sm_profiler.source import ProfileSource

EXAMPLES = """\
examples:
  sm-profiler report sm-profiler                      the newest local run
  sm-profiler report my-training-job --follow         a job of SageMaker while it runs
  sm-profiler report s3://bucket/job/profiler-output --fail-on issues
  sm-profiler report times.csv                        rank, step and seconds that you recorded yourself
"""

SHOWN_OTHERS = 5
LOCAL_POLL_S = 2.0  # listing a folder costs little
REMOTE_POLL_S = 10.0
PAUSE_S = 10.0  # after a report at least
MAX_SHARE = 0.1  # of the time that reports take: a training on this machine needs the cores


def add_report(parser: ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    add_source(parser)
    parser.add_argument(
        "--out", metavar="DIR", help="folder or s3:// URI for the report (default: ./profiler-report/<job>)"
    )
    parser.add_argument(
        "--parameters", type=Path, metavar="FILE", help='JSON of rule parameters: {"<RuleName>_<parameter>": value}'
    )
    parser.add_argument(
        "--compat", choices=["service"], help="reproduce the managed service's numbers, known errors included"
    )
    parser.add_argument(
        "--speedscope", type=Path, metavar="FILE", help="also write the sampled Python stacks for speedscope.app"
    )
    add_executor(parser)
    parser.add_argument("--follow", action="store_true", help="update the report until the job ends")
    parser.add_argument("--strict", action="store_true", help="fail if any record cannot be read")
    parser.add_argument(
        "--fail-on", choices=["issues"], help="exit with 1 if the verdict names a problem, or the job failed"
    )
    add_prices(parser)
    parser.add_argument(
        "--columns", metavar="NAME=COLUMN,…", default="",
        help="for a table of times: rank=worker,seconds=duration"
    )  # fmt: skip
    away = parser.add_argument_group("in a processing job of SageMaker")
    away.add_argument(
        "--on-sagemaker", action="store_true", help="evaluate SOURCE, a training job, there, and wait for the report"
    )
    add_job_arguments(away, needs_role=False)


def run_report(options: Namespace) -> int:
    from sm_profiler.diagnosis import is_table
    from sm_profiler.report import terminal_summary, write_report
    from sm_profiler.report.recordings import holds_only_traces

    if options.on_sagemaker:
        return report_there(options)
    job, from_table = priced_job(options), is_table(options.source)
    if options.columns and not from_table:
        raise ConfigError("--columns names the columns of a table of times (.csv, .parquet, .jsonl)")
    if from_table:
        report = report_on_table(options, job)
    elif not options.follow and holds_only_traces(options.source):
        report = report_on_traces(options, job)
    else:
        report = report_on_profile(options, job)
    out = options.out or default_folder(report.metrics.name)
    write_report(report, out)
    say(printable(page_of(out)))
    try:
        print(terminal_summary(report, has_colours(sys.stdout)), flush=True)
    except BrokenPipeError:  # the reader (`| head`) is done; nothing may be written at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return exit_code(report, options)


def report_on_profile(options: Namespace, job: JobInfo) -> Report:
    """Report on the profile of a job, again and again while it runs if that is wanted."""
    from sm_profiler.report import build_report
    from sm_profiler.serve.reading import JobReader

    if options.follow and options.executor:
        raise ConfigError("--executor reads a job that is over: leave out --follow")
    where = newest_run(options.source, running=options.follow)
    rules: dict[str, Any] = {"parameters": read_json(options.parameters) or {}, "compat": options.compat}
    if options.follow:
        report = follow(JobReader(where, strict=options.strict, job=job, **rules), options.out)
    else:
        source = open_run(where, strict=options.strict)
        name_others(Path(where))
        report = build_report(source, job=job, executor=options.executor, **rules)
    if options.speedscope:
        write_speedscope(report, options.speedscope)
    return report


def name_others(folder: Path) -> None:
    """Print that other jobs have their profiles in the folder of this one, which was the first there."""
    from sm_profiler.monitor.place import others_in, read_claim

    with suppress(OSError):
        if (names := [path.name for path in others_in(folder)]) and (owner := read_claim(folder)) is not None:
            shown = f"{', '.join(names[:SHOWN_OTHERS])}{' …' if len(names) > SHOWN_OTHERS else ''}"
            text = f"this report is of job {owner.job}, the first in {folder}; others there: {shown}"
            say(printable(text))


def report_on_traces(options: Namespace, job: JobInfo) -> Report:
    """Report on a file, folder or prefix of torch.profiler's traces."""
    from sm_profiler.report.recordings import report_traces

    report = report_traces(options.source, job)
    if options.strict and report.quality.lost:
        raise SourceError(f"{printable(options.source)}: {report.quality.lost} records could not be read")
    return report


def report_on_table(options: Namespace, job: JobInfo) -> Report:
    """Report on a table of times that another tool recorded, or on an MLPerf log."""
    from sm_profiler.report.recordings import report_table

    pairs = [pair.partition("=") for pair in options.columns.split(",") if pair]
    if any(not equals or not column for _, equals, column in pairs):
        raise ConfigError("--columns needs pairs: rank=worker,seconds=duration")
    report = report_table(options.source, job, {name.strip(): column.strip() for name, _, column in pairs})
    if options.strict and report.quality.lost:
        raise SourceError(f"{printable(options.source)}: {report.quality.lost} rows could not be read")
    return report


def report_there(options: Namespace) -> int:
    """Have a processing job write the report next to the profile; print its verdict and the page's URI."""
    from sm_profiler.deploy import start_rules, wait_for_end

    unused = ("out", "compat", "speedscope", "executor", "follow", "strict", "fail_on", "instance_type", "prices")
    given = [f"--{name.replace('_', '-')}" for name in unused if getattr(options, name)]
    if given:
        raise ConfigError(f"{given[0]} has no effect with --on-sagemaker: leave it out")
    if not (options.role or options.training_role):
        raise ConfigError("--on-sagemaker needs the role of the processing job: give --role, or --training-role")
    started = start_rules(
        options.source,
        image=rule_image(options),
        role=options.role,
        parameters=read_json(options.parameters),
        instance_type=options.processing_type,
        instances=options.instances,
        region=options.region,
    )
    say(f"started processing job {started.name}")
    status, message = wait_for_end(started.name, region=options.region)
    if status != "Completed":
        raise ProfilerError(f"processing job {started.name}: {status}: {message or 'no reason given'}")
    print(printable(message))
    print(started.report_uri)
    return DONE


def exit_code(report: Report, options: Namespace) -> int:
    """Return the command's exit code for a verdict."""
    return BAD if options.fail_on and is_issue(report) else DONE


def is_issue(report: Report) -> bool:
    """Return whether a verdict names a problem, or the job failed: that is an issue, however fast it was."""
    kind = report.verdict.kind
    return report.metrics.ending.failed or not (kind.is_healthy or report.verdict.main.is_open)


def open_run(where: str, *, strict: bool) -> ProfileSource:
    from sm_profiler.source import open_source

    try:
        return open_source(where, strict=strict)
    except NoProfilerDataError as error:
        state = read_state(Path(where)) if Path(where).is_dir() else None
        if state is None or state.is_over:
            raise
        hint = "its run has no complete file yet: 'sm-profiler watch' shows it, --follow waits for it"
        raise SourceError(f"{error}; {hint}") from None


def follow(
    reader: JobReader,
    out: str | None,
    *,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Report:
    """Write a report while there is new data; return the last once the job is over."""
    from sm_profiler.report import write_report

    said, due_s, is_new = "", 0.0, False

    def tell(text: str) -> None:
        nonlocal said
        if text != said:
            said = text
            say(printable(text))

    while True:
        try:
            is_new = reader.read() or is_new
            if reader.over:
                if reader.outcome:
                    tell(f"{reader.where}: the run {reader.outcome}")
                return reader.report()
            begun_s = clock()
            if is_new and begun_s >= due_s:
                report, folder = reader.report(), out or default_folder(reader.name)
                write_report(report, folder)
                kind = "report" if reader.files else "preliminary report"
                tell(f"{kind}: {report.verdict.kind.value}, {page_of(folder)}")
                is_new, due_s = False, clock() + max(PAUSE_S, (clock() - begun_s) / MAX_SHARE)
        except NoProfilerDataError as error:
            if error.final or reader.outcome:
                raise SourceError(f"{error}; its run {reader.outcome}" if reader.outcome else str(error)) from None
        if not said:
            tell(f"{reader.where}: waiting for the first complete data (Ctrl-C stops)")
        sleep(LOCAL_POLL_S if reader.folder else REMOTE_POLL_S)


def default_folder(name: str) -> str:
    return os.path.join("profiler-report", name)  # as the user sees it, not normalized


def page_of(out: str) -> str:
    """Return the path or URI of the page in a report's folder."""
    return f"{out.rstrip('/')}/profiler-report.html"


def write_speedscope(report: Report, path: Path) -> None:
    import json

    from sm_profiler.render.flame import to_speedscope
    from sm_profiler.report.report_json import plain

    try:
        path.write_text(json.dumps(plain(to_speedscope(report.metrics.samples_as_timed, report.metrics.name))))
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from None
