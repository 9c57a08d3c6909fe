"""Main program of the rule container: evaluate, write the report, end with a status.

    python -m sm_profiler.rules.runner        (the image starts `sm-profiler rules run`, which adds the HTML report)

Exit codes: 0 if the rule was evaluated, with or without findings; 1 if not (an error of the container or of the rule).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs

from sm_profiler.container import RULE_OUTPUT, rooted
from sm_profiler.errors import ConfigError, ProfilerError, SourceError
from sm_profiler.folding import (
    EvaluationWindow,
    Fold,
    Following,
    Slice,
    error_line,
    others_may_follow,
    run_folds,
    run_sliced,
)
from sm_profiler.formats.layout import END_MARKERS, OUTPUT
from sm_profiler.printable import logger_for, printable
from sm_profiler.rules.custom import CustomOutcome, CustomProcess
from sm_profiler.rules.profiler_report import ProfilerReport, of_report
from sm_profiler.rules.results import RuleResults, read_own_result, write_plain_report, write_rule_reports
from sm_profiler.rules.rule import RuleEvaluationConditionMet
from sm_profiler.rules.rule_job import (
    DEFAULT_RULE,
    Settings,
    Status,
    log_to_stdout,
    read_settings,
    write_status,
)
from sm_profiler.settings import POLL_S
from sm_profiler.source import ProfileSource, open_source
from sm_profiler.storage import open_storage
from sm_profiler.threads import SignalEvent

OK, FAILED = 0, 1
log = logger_for("sm_profiler.rules")
NOT_EVALUATED = "not evaluated"  # how the details of a rule begin that had no data; its status is NoIssuesFound

Spreader = Callable[[ProfileSource, dict[str, str], int, Callable[[], bool]], Slice | None]


@attrs.define
class ReportJob:
    """Input of a report writer.

    Attributes:
        folds: the writer's own folds, fed in the same pass.
        parameters: parameters of the rules, as given.
        compat: "service" or None.
        job: the training job's name; "" if unknown.
        finished: False while the job is still followed.
    """

    source: ProfileSource
    results: RuleResults
    folds: Sequence[Fold]
    folder: Path
    parameters: dict[str, str]
    compat: str | None
    job: str
    finished: bool


@attrs.frozen
class Judgement:
    """The status of a job by its report, returned by a report writer that judges.

    Attributes:
        status: `Status.ISSUES`, `Status.NO_ISSUES`, or None if the data do not suffice and the rules decide.
        details: one sentence.
    """

    status: Status | None
    details: str


ReportWriter = Callable[[ReportJob], Judgement | None]


class Runner:
    def __init__(  # keyword arguments, each an independent choice
        self,
        settings: Settings,
        *,
        write_report: ReportWriter | None = None,
        make_folds: Callable[[], Sequence[Fold]] = tuple,
        spread: Spreader | None = None,
        notes: Sequence[str] = (),
        poll_s: float = POLL_S.default,
    ) -> None:
        self.settings = settings
        self._write_report = write_report
        self._make_folds = make_folds
        self._folds = list(make_folds())
        self._spread = spread
        self._notes = notes
        self._poll_s = poll_s
        self._stopped = SignalEvent()
        self._windows = 0  # evaluated
        self._reported_windows = -1
        self._judgement: Judgement | None = None
        self._broken_folds: dict[str, str] = {}

    def stop(self) -> None:
        """End soon, with a report of the data seen so far; may be called by a signal handler."""
        self._stopped.set()

    def run(self) -> tuple[Status, str]:
        """Evaluate until the job is over; return status and details. A report is always written."""
        write_status(self.settings.output, Status.IN_PROGRESS)
        try:
            status, details = self._run()
        except ProfilerError as error:
            status, details = Status.ERROR, str(error)
        except Exception as error:
            log.exception("the evaluation failed")
            status, details = Status.ERROR, f"InternalServerError: {error_line(error)}"
        details = printable(" ".join(filter(None, [details, *self._notes])))
        if status is Status.ERROR:
            write_plain_report(self.settings.output, self.settings.rule, details)
        write_status(self.settings.output, status, details)
        self.settings.write_message(details)
        return status, details

    def _run(self) -> tuple[Status, str]:
        parameters, deciding = self._rule_parameters()
        compat: Any = self.settings.compat
        report = ProfilerReport(compat=compat, **parameters)
        source = self._open()
        if source is None:
            reason = "stopped before any arrived" if self._stopped.is_set() else "the job ended without any"
            details = f"{NOT_EVALUATED}: no profiler data in {self.settings.source}: {reason}"
            write_plain_report(self.settings.output, self.settings.rule, details)
            return (Status.STOPPED if self._stopped.is_set() else Status.NO_ISSUES), details
        custom = CustomProcess.start(self.settings, source.uri) if self.settings.code else None
        try:
            report = self._evaluate(source, report, parameters)
            if self._stopped.is_set():
                write_status(self.settings.output, Status.STOPPING)
            outcome = custom.wait(self.settings.timeout_s, self._stopped) if custom else None
        finally:
            if custom:
                custom.kill()
        self._render(source, report, finished=True, outcome=outcome)
        return self._conclude(report, deciding, outcome)

    def _rule_parameters(self) -> tuple[dict[str, Any], str]:
        """Return the parameters of all rules, and the name of the one that decides the status."""
        settings = self.settings
        if settings.code:
            return {}, settings.rule
        names = {name.lower(): name for name in (*ProfilerReport().rules, DEFAULT_RULE)}
        name = names.get(settings.rule.lower())
        if name is None:
            raise ConfigError(
                f"{settings.rule} is not a built-in rule ({', '.join(names.values())});"
                " set source_s3_uri to the file with your own rule"
            )
        return of_report(name, settings.parameters), name

    def _open(self) -> ProfileSource | None:
        """Return the profile as soon as it has data; None if the job ends without any."""
        location = self.settings.source
        if not location:
            raise SourceError(
                f"no profile to evaluate: neither a mounted folder nor an S3 URI was given for {self.settings.rule}"
            )
        waited = False
        while True:
            ended = _has_ended(location)  # asked first: the last files come before the marker, often with it
            over = not self.settings.follow or self._should_stop() or ended
            try:
                return open_source(location, cache=False, progress=False, left_open=False)
            except SourceError as error:
                if over and (waited or self.settings.follow or ended):
                    return None
                if over:
                    raise
                log.info("waiting for profiler data: %s", error)
            waited = True
            self._stopped.wait(self._poll_s)

    def _should_stop(self) -> bool:
        return self._stopped.is_set() or self.settings.stop_signalled()

    def _evaluate(self, source: ProfileSource, report: ProfilerReport, parameters: dict[str, Any]) -> ProfilerReport:
        """Feed rules and folds with the whole job; return the rules."""
        interval_us = report.parameters.scan_interval_us
        if self.settings.compat is not None or (self.settings.follow and self._spread is None):
            self._note_broken(self._followed(source, report, interval_us))
            return report
        whole = None
        if self._spread is not None:
            self._wait_for_end(source)
            whole = self._spread(source, parameters, interval_us, self._stopped.is_set)
        if whole is None:
            whole = run_sliced(
                source, lambda: [ProfilerReport(**parameters), *self._make_folds()], interval_us=interval_us
            )
        report, *self._folds = whole.folds
        self._windows = report.windows
        self._note_broken(whole.broken)
        return report

    def _wait_for_end(self, source: ProfileSource) -> None:
        while self.settings.follow and not self._should_stop():
            if source.finished and not others_may_follow(source):
                return
            self._stopped.wait(self._poll_s)
            source.refresh()

    def _followed(self, source: ProfileSource, report: ProfilerReport, interval_us: int) -> dict[int, str]:
        following = Following(
            stop=self._should_stop,
            poll_s=self._poll_s,
            sleep=self._stopped.wait,
            caught_up=lambda: self._render(source, report, finished=False),
        )

        def count(_: EvaluationWindow) -> None:
            self._windows += 1

        follow: bool | Following = following if self.settings.follow else False
        return run_folds(source, [report, *self._folds], follow=follow, on_window=count, interval_us=interval_us)

    def _note_broken(self, broken: dict[int, str]) -> None:
        for index, line in broken.items():
            log.warning("part of the report is missing: %s", line)
            if index == 0:
                raise ProfilerError(line)
            self._broken_folds[type(self._folds[index - 1]).__name__] = line

    def _render(
        self, source: ProfileSource, report: ProfilerReport, *, finished: bool, outcome: CustomOutcome | None = None
    ) -> None:
        """Write the rules' results and the report, unless nothing has changed."""
        if self._reported_windows == self._windows and not finished:
            return
        self._reported_windows = self._windows
        settings = self.settings
        results = report.results()
        settings.output.mkdir(parents=True, exist_ok=True)
        results.broken.update(self._broken_folds)
        if outcome is not None and settings.rule not in results.results:
            own = read_own_result(settings.output, settings.rule)
            if outcome.status is Status.ERROR:
                results.broken[settings.rule] = outcome.details
            elif own is not None:
                results.results[settings.rule] = own
        write_rule_reports(results.as_dict(), settings.output)
        for name, line in results.broken.items():
            log.warning("%s could not be evaluated: %s", name, line)
        if self._write_report is None:
            write_plain_report(settings.output, settings.rule, "", results)
            return
        job = ReportJob(
            source,
            results,
            self._folds,
            settings.output,
            settings.parameters,
            settings.compat,
            settings.job,
            finished,
        )
        self._judgement = None
        try:
            self._judgement = self._write_report(job)
        except Exception as error:
            log.exception("the report could not be rendered")
            reason = f"the report could not be rendered: {error_line(error)}"
            write_plain_report(settings.output, settings.rule, reason, results)

    def _conclude(self, report: ProfilerReport, deciding: str, outcome: CustomOutcome | None) -> tuple[Status, str]:
        stopped = self._stopped.is_set()
        if outcome is not None:
            if stopped and outcome.status is not Status.ISSUES:
                return Status.STOPPED, outcome.details or "stopped by signal"
            return outcome.status, outcome.details
        results = report.results()
        if deciding in results.broken:
            return Status.ERROR, f"{deciding}: {results.broken[deciding]}"
        judged = self._judged(results, deciding)
        if judged is not None and not (stopped and judged[0] is Status.NO_ISSUES):
            return judged
        if deciding in results.fired or (deciding == DEFAULT_RULE and results.fired):
            step = report.first_met.get(deciding, self._windows)
            return Status.ISSUES, str(RuleEvaluationConditionMet(deciding, step))
        decided = results.results.get(deciding)
        reasons = []
        if decided is not None and decided.not_evaluated:  # NoIssuesFound alone would look as if all were well
            reasons = [f"{NOT_EVALUATED}: {decided.not_evaluated}"]
        reasons += [f"{name} could not be evaluated: {line}" for name, line in results.broken.items()]
        broken = "; ".join(reasons)
        return (Status.STOPPED, "stopped by signal") if stopped else (Status.NO_ISSUES, broken)

    def _judged(self, results: RuleResults, deciding: str) -> tuple[Status, str] | None:
        """Return status and details by the report's verdict; None if a rule decides, as it did in the service."""
        judgement = self._judgement
        if judgement is None or deciding != DEFAULT_RULE or self.settings.compat is not None:
            return None
        fired = f" Rules that fired: {', '.join(results.fired)}." if results.fired else ""
        broken = "".join(f" {name} could not be evaluated: {line}." for name, line in results.broken.items())
        status = judgement.status or (Status.ISSUES if results.fired else Status.NO_ISSUES)
        return status, f"{judgement.details}{fired}{broken}"


def _has_ended(location: str) -> bool:
    """Return True if there is an end marker; a job without data has one too."""
    storage = open_storage(location)
    try:
        return any(storage.exists(marker) for marker in END_MARKERS)
    except SourceError:
        return False


def main(
    argv: Sequence[str] | None = None,
    *,
    write_report: ReportWriter | None = None,
    make_folds: Callable[[], Sequence[Fold]] = tuple,
    spread: Spreader | None = None,
    notes: Sequence[str] = (),
) -> int:
    """Run the container's rule; return the exit code.

    Args:
        argv: `--follow` and `--compat service` override the parameters of the same names.
        write_report: writes the report; default: a plain page.
        make_folds: creates the folds that `write_report` needs, to feed in the same pass.
        spread: folds a job that is over with other processes: called with source, rule parameters, the length of a
            window and a function that returns True once it should hurry, it returns the state of the rules and these
            folds, or None if the job must be read here.
        notes: sentences for the end of the status's details.
    """
    words = list(argv or ())
    log_to_stdout()
    try:
        settings = read_settings(os.environ)
    except ConfigError as error:
        log.error("%s", error)  # one line is enough
        output = rooted(RULE_OUTPUT) / OUTPUT
        try:
            write_plain_report(output, DEFAULT_RULE, printable(error))
            write_status(output, Status.ERROR, printable(error))
        except OSError as failed:
            log.error("cannot write to %s: %s", output, failed)  # one line is enough
        return FAILED
    if "--follow" in words:
        settings = attrs.evolve(settings, follow=True)
    if "--compat" in words[:-1]:
        settings = attrs.evolve(settings, compat=words[words.index("--compat") + 1])
    runner = Runner(
        settings, write_report=write_report, make_folds=make_folds, spread=spread, notes=notes,
        poll_s=POLL_S.read_or_default(),
    )  # fmt: skip
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: runner.stop())
    started = time.monotonic()
    try:
        status, details = runner.run()
    except OSError as error:
        log.error("cannot write to %s: %s", settings.output, error)  # one line is enough
        return FAILED
    log.info(
        "%s: %s%s (%.1f s)", settings.rule, status.value, f": {details}" if details else "", time.monotonic() - started
    )
    return FAILED if status is Status.ERROR else OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
