"""`sm-profiler report`: verdict on the terminal; HTML, notebook and JSON in a folder."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from sm_profiler.cli.command import (
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
from sm_profiler.printable import printable
from sm_profiler.source.open_files import copy_with_open_files
from sm_profiler.source.opening import NoProfilerDataError

if TYPE_CHECKING:
    from sm_profiler.report import JobInfo, Report
    from sm_profiler.source import ProfileSource


EXAMPLES = """\
examples:
  sm-profiler report sm-profiler                      the newest local run
  sm-profiler report my-training-job --follow         a job of SageMaker while it runs
  sm-profiler report s3://bucket/job/profiler-output --fail-on issues
  sm-profiler report times.csv                        rank, step and seconds that you recorded yourself
"""


def add_arguments(parser: ArgumentParser) -> None:
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


def run(options: Namespace) -> int:
    from sm_profiler.diagnosis import is_table
    from sm_profiler.report import terminal_summary, write_report
    from sm_profiler.report.traces import holds_only_traces

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
    print(f"sm-profiler: {printable(page_of(out))}", file=sys.stderr)
    try:
        print(terminal_summary(report, has_colours(sys.stdout)), flush=True)
    except BrokenPipeError:  # the reader (`| head`) is done; nothing may be written at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return exit_code(report, options)


def report_on_profile(options: Namespace, job: JobInfo) -> Report:
    """Report on the profile of a job, again and again while it runs if that is wanted."""
    from sm_profiler.report import build_report

    if options.follow and options.executor:
        raise ConfigError("--executor reads a job that is over: leave out --follow")
    where = newest_run(options.source, running=options.follow)
    build = partial(build_report, parameters=read_json(options.parameters), compat=options.compat, job=job)
    if options.follow:
        report = follow(where, build, strict=options.strict, out=options.out)
    else:
        report = build(open_run(where, strict=options.strict), executor=options.executor)
    if options.speedscope:
        write_speedscope(report, options.speedscope)
    return report


def report_on_traces(options: Namespace, job: JobInfo) -> Report:
    """Report on a file, folder or prefix of torch.profiler's traces."""
    from sm_profiler.report.traces import report_traces

    report = report_traces(options.source, job)
    if options.strict and report.quality.lost:
        raise SourceError(f"{printable(options.source)}: {report.quality.lost} records could not be read")
    return report


def report_on_table(options: Namespace, job: JobInfo) -> Report:
    """Report on a table of times that another tool recorded, or on an MLPerf log."""
    from sm_profiler.report.tables import report_table

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
    print(f"sm-profiler: started processing job {started.name}", file=sys.stderr, flush=True)
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
    """Open a profile."""
    from sm_profiler.source import open_source

    try:
        return open_source(where, strict=strict)
    except NoProfilerDataError as error:
        state = read_state(Path(where)) if Path(where).is_dir() else None
        if state is None or state.is_over:
            raise
        hint = "its run has no complete file yet: 'sm-profiler watch' shows it, --follow waits for it"
        raise SourceError(f"{error}; {hint}") from None


def follow(where: str, build: Callable[..., Report], *, strict: bool, out: str | None) -> Report:
    """Write a report whenever there is new data; return the last once the job is over."""
    from sm_profiler.report import write_report
    from sm_profiler.report.build import job_name
    from sm_profiler.rules import Following

    follower = Follower(where, strict)
    name = job_name(str(follower.folder.resolve()) if follower.folder else where)

    def update(report: Report, kind: str = "report") -> None:
        folder = out or default_folder(name)
        write_report(report, folder)
        line = f"sm-profiler: {kind}: {report.verdict.kind.value}, {printable(page_of(folder))}"
        print(line, file=sys.stderr, flush=True)
        follower.reported = follower.reported or kind == "report"

    def preview(found: ProfileSource) -> None:
        report = build(found)
        update(attrs.evolve(report, metrics=attrs.evolve(report.metrics, name=name)), "preliminary report")

    follower.preview = preview
    source = follower.open()
    following = Following(
        stop=follower.should_stop, poll_s=follower.poll_s, sleep=follower.sleep, caught_up=follower.waiting
    )
    return build(source, follow=following, on_report=update)


def default_folder(name: str) -> str:
    """Return the folder of a job's report."""
    return os.path.join("profiler-report", name)  # as the user sees it, not normalized


def page_of(out: str) -> str:
    """Return the path or URI of the page in a report's folder."""
    return f"{out.rstrip('/')}/profiler-report.html"


def write_speedscope(report: Report, path: Path) -> None:
    """Write the sampled stacks of a job."""
    import json

    from sm_profiler.render.flame import to_speedscope
    from sm_profiler.report.report_json import plain

    try:
        path.write_text(json.dumps(plain(to_speedscope(report.metrics.samples, report.metrics.name))))
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror or error}") from None


LOCAL_POLL_S = 2.0  # listing a folder costs little
REMOTE_POLL_S = 10.0
PREVIEW_S = 10.0  # between two preliminary reports


@attrs.define
class Follower:
    """Follows one folder, prefix or job.

    Attributes:
        where: the source as named on the command line.
        strict: make every lost record an error.
        preview: called with a source of the data so far, open files included, until there is a first report.
        sleep, clock: for tests.
    """

    where: str
    strict: bool = False
    preview: Callable[[ProfileSource], object] | None = None
    sleep: Callable[[float], object] = time.sleep
    clock: Callable[[], float] = time.monotonic
    reported: bool = False
    _last_line: str = ""
    _previewed: float | None = None
    _over: bool = False

    @property
    def folder(self) -> Path | None:
        """The folder of a local profile; None for anything else."""
        folder = Path(self.where)
        return folder if "://" not in self.where and folder.is_dir() else None

    @property
    def poll_s(self) -> float:
        """Seconds between two checks."""
        return LOCAL_POLL_S if self.folder else REMOTE_POLL_S

    def open(self) -> ProfileSource:
        """Open the source as soon as it contains data."""
        from sm_profiler.source import open_source

        while True:
            try:
                return open_source(self.where, strict=self.strict, left_open=False)
            except NoProfilerDataError as error:
                if error.final:
                    raise
                state = read_state(self.folder) if self.folder else None
                if state is not None and state.is_over:
                    raise SourceError(f"{error}; its run {state.outcome}") from None
            self.waiting()
            self.sleep(self.poll_s)

    def waiting(self) -> None:
        """Report what is waited for, and make a preliminary report if there is data in open files."""
        self.report_state("waiting for the first complete data" if not self.reported else "waiting for the job to end")
        if self.reported or self.preview is None or self.folder is None:
            return
        from sm_profiler.source import open_source

        if self._previewed is None or self.clock() - self._previewed >= PREVIEW_S:
            with tempfile.TemporaryDirectory(prefix="sm-profiler-") as scratch:
                copy = Path(scratch, "profiler-output")
                if copy_with_open_files(self.folder, copy):
                    try:
                        self.preview(open_source(copy, cache=False, progress=False))
                        self._previewed = self.clock()
                    except SourceError:  # nothing readable yet
                        return

    def should_stop(self) -> bool:
        """Return whether the writer is gone; data is read once more after that has been noticed."""
        if self._over:
            return True
        state = read_state(self.folder) if self.folder else None
        if state is not None and state.is_over:
            self._over = True
            self.report_state(f"the run {state.outcome}; reading its last files")
        return False

    def report_state(self, text: str) -> None:
        """Print a line about the state of following, unless it repeats the last line."""
        if text != self._last_line:
            self._last_line = text
            print(f"sm-profiler: {printable(self.where)}: {text} (Ctrl-C stops)", file=sys.stderr, flush=True)
