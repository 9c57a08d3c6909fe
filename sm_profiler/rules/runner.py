"""The rule container's main program: evaluate, report, end with a status word.

    python -m sm_profiler.rules.runner        (the image starts `sm-profiler rules run`, which adds the HTML report)

Exit codes: 0 the rule was evaluated, whatever it found; 1 it could not be (an error of the container or of the rule).
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs

from sm_profiler.container import POLL_VARIABLE, RULE_OUTPUT, rooted
from sm_profiler.errors import ConfigError, ProfilerError, SourceError
from sm_profiler.formats.layout import END_MARKERS
from sm_profiler.rules.conditions import RuleEvaluationConditionMet
from sm_profiler.rules.custom_process import CustomOutcome, CustomProcess
from sm_profiler.rules.engine import Fold, Following, RuleResults, run_folds, write_rule_reports
from sm_profiler.rules.plain_report import write_plain_report
from sm_profiler.rules.profiler_report import ProfilerReport, reason
from sm_profiler.rules.settings import DEFAULT_RULE, PROFILER_OUTPUT, Settings, read_settings
from sm_profiler.rules.status import Status, write_status
from sm_profiler.rules.window import Window
from sm_profiler.source import ProfileSource, open_source
from sm_profiler.storage import open_storage

OK, FAILED = 0, 1
POLL_S = 10.0
log = logging.getLogger("sm_profiler.rules")


@attrs.define
class ReportJob:
    """What a report is written from.

    Attributes:
        source: the profile.
        results: what the rules found so far.
        folds: the folds that the report's writer had fed.
        folder: where the report goes (profiler-output of the rule's output).
        parameters: of the rules, as they were given.
        compat: "service" or None.
        job: the training job's name, "" if unknown.
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


ReportWriter = Callable[[ReportJob], object]


class Runner:
    """One evaluation of a rule on one job."""

    def __init__(
        self,
        settings: Settings,
        *,
        write_report: ReportWriter | None = None,
        make_folds: Callable[[], Sequence[Fold]] = tuple,
        poll_s: float = POLL_S,
    ) -> None:
        self.settings = settings
        self._write_report = write_report
        self._folds = list(make_folds())
        self._poll_s = poll_s
        self._stopped = threading.Event()
        self._steps = 0  # windows evaluated
        self._met_at: int | None = None  # the first window in which the rule's condition was met
        self._reported_steps = -1

    def stop(self) -> None:
        """End soon, with a report of what has been seen; safe to call from a signal handler."""
        self._stopped.set()

    def run(self) -> tuple[Status, str]:
        """Evaluate until the job is over; returns the status and its details, and leaves a report in any case."""
        write_status(self.settings.output, Status.IN_PROGRESS)
        try:
            status, details = self._run()
        except ProfilerError as error:
            status, details = Status.ERROR, str(error)
        except Exception as error:
            log.exception("the evaluation failed")
            status, details = Status.ERROR, f"InternalServerError: {reason(error)}"
        if status is Status.ERROR:
            write_plain_report(self.settings.output, self.settings.rule, details)
        write_status(self.settings.output, status, details)
        return status, details

    def _run(self) -> tuple[Status, str]:
        report, decides = self._rules()
        source = self._open()
        if source is None:
            word = "stopped before any came" if self._stopped.is_set() else "the job ended without any"
            details = f"no profiler data in {self.settings.source}: {word}"
            write_plain_report(self.settings.output, self.settings.rule, details)
            return (Status.STOPPED if self._stopped.is_set() else Status.NO_ISSUES), details
        custom = self._start_custom(source.uri)
        try:
            self._evaluate(source, report, decides)
            if self._stopped.is_set():
                write_status(self.settings.output, Status.STOPPING)
            self._render(source, report, finished=True)
            outcome = custom.wait(self.settings.timeout_s, self._stopped) if custom else None
        finally:
            if custom:
                custom.kill()
        return self._verdict(report, decides, outcome)

    def _rules(self) -> tuple[ProfilerReport, str]:
        """All rules, with the parameters of the chosen one, and the name of the one that decides."""
        settings = self.settings
        compat: Any = settings.compat
        if settings.code:
            return ProfilerReport(compat=compat), settings.rule
        every = ProfilerReport(compat=compat)
        names = {name.lower(): name for name in (*every.rules, DEFAULT_RULE)}
        name = names.get(settings.rule.lower())
        if name is None:
            raise ConfigError(
                f"{settings.rule} is no built-in rule ({', '.join(names.values())}),"
                " and source_s3_uri names no file with a rule of yours"
            )
        prefix = "" if name == DEFAULT_RULE else f"{name}_"
        given = {
            key if key.lower().startswith(prefix.lower()) or key == "scan_interval_us" else prefix + key: value
            for key, value in settings.parameters.items()
        }
        return ProfilerReport(compat=compat, **given), name

    def _open(self) -> ProfileSource | None:
        """The profile, as soon as there is one; None if the job ends without."""
        where = self.settings.source
        if not where:
            raise SourceError(
                f"no profile to evaluate: neither a mounted folder nor an S3 URI was given for {self.settings.rule}"
            )
        waited = False
        while True:
            try:
                return open_source(where, cache=False, progress=False)
            except SourceError as error:
                over = not self.settings.follow or self._should_stop() or _has_ended(where)
                if over and (waited or self.settings.follow or _has_ended(where)):
                    return None
                if over:
                    raise
                log.info("waiting for profiler data: %s", error)
            waited = True
            self._stopped.wait(self._poll_s)

    def _should_stop(self) -> bool:
        return self._stopped.is_set() or self.settings.stop_signalled()

    def _start_custom(self, uri: str) -> CustomProcess | None:
        settings = self.settings
        if not settings.code:
            return None
        return CustomProcess.start(settings, uri)

    def _evaluate(self, source: ProfileSource, report: ProfilerReport, decides: str) -> None:
        following = Following(
            stop=self._should_stop,
            poll_s=self._poll_s,
            sleep=self._stopped.wait,
            caught_up=lambda: self._render(source, report, finished=False),
        )
        rules = _Deciding(report, decides)

        def after(_: Window) -> None:
            if rules.met and self._met_at is None:
                self._met_at = self._steps
            self._steps += 1

        follow: bool | Following = following if self.settings.follow else False
        interval_us = report.parameters.scan_interval_us
        broken = run_folds(source, [rules, *self._folds], follow=follow, on_window=after, interval_us=interval_us)
        for place, why in broken.items():
            log.warning("part of the report was left out: %s", why)
            if place == 0:
                raise ProfilerError(why)

    def _render(self, source: ProfileSource, report: ProfilerReport, *, finished: bool) -> None:
        """Write the rules' results and the report, if anything is new."""
        if self._reported_steps == self._steps and not finished:
            return
        self._reported_steps = self._steps
        results = RuleResults(report.results(), dict(report.broken))
        folder = self.settings.output
        folder.mkdir(parents=True, exist_ok=True)
        write_rule_reports(results, folder)
        for name, why in results.broken.items():
            log.warning("%s could not be evaluated: %s", name, why)
        if self._write_report is None:
            write_plain_report(folder, self.settings.rule, "", results)
            return
        settings = self.settings
        job = ReportJob(
            source, results, self._folds, folder, settings.parameters, settings.compat, settings.job, finished
        )
        try:
            self._write_report(job)
        except Exception as error:
            log.exception("the report could not be drawn")
            write_plain_report(folder, settings.rule, f"the report could not be drawn: {reason(error)}", results)

    def _verdict(self, report: ProfilerReport, decides: str, outcome: CustomOutcome | None) -> tuple[Status, str]:
        stopped = self._stopped.is_set()
        if outcome is not None:
            status, details = outcome.status, outcome.details
            return (
                (Status.STOPPED, details or "stopped by signal")
                if stopped and status is not Status.ISSUES
                else (status, details)
            )
        if decides != DEFAULT_RULE and decides in report.broken:
            return Status.ERROR, f"{decides}: {report.broken[decides]}"
        results = report.results()
        fired = [name for name, result in results.items() if result["RuleTriggered"] > 0]
        if decides in fired or (decides == DEFAULT_RULE and fired):
            step = self._steps if decides == DEFAULT_RULE or self._met_at is None else self._met_at
            return Status.ISSUES, str(RuleEvaluationConditionMet(decides, step))
        broken = "; ".join(f"{name} could not be evaluated: {why}" for name, why in report.broken.items())
        return (Status.STOPPED, "stopped by signal") if stopped else (Status.NO_ISSUES, broken)


class _Deciding:
    """All rules as one fold; notes when the deciding one's condition is first met."""

    def __init__(self, report: ProfilerReport, decides: str) -> None:
        self._report = report
        self._decides = decides
        self.met = False

    def update(self, window: Window) -> None:
        """Give the window to all rules."""
        self._report.update(window)
        rule = self._report.rules.get(self._decides)
        self.met = self.met or (rule is not None and rule.triggered > 0)

    def merge(self, other: Any) -> None:
        """Not needed: one process evaluates a job."""
        raise NotImplementedError

    def result(self) -> dict[str, dict[str, Any]]:
        """All reports."""
        return self._report.results()


def _has_ended(where: str) -> bool:
    """Whether an end marker stands although there is no data."""
    storage = open_storage(where)
    try:
        return any(storage.exists(marker) for marker in END_MARKERS)
    except SourceError:
        return False


def main(
    argv: Sequence[str] | None = None,
    *,
    write_report: ReportWriter | None = None,
    make_folds: Callable[[], Sequence[Fold]] = tuple,
) -> int:
    """Run the container's rule; returns the exit code.

    Args:
        argv: `--follow` and `--compat service` stand for the variables of the same names.
        write_report: draws the report; the room of rules knows none.
        make_folds: makes the folds that `write_report` needs, to be fed in the same pass.
    """
    words = list(argv or ())
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stdout)
    try:
        settings = read_settings(os.environ)
    except ConfigError as error:
        fallback = rooted(RULE_OUTPUT) / PROFILER_OUTPUT
        write_plain_report(fallback, DEFAULT_RULE, str(error))
        write_status(fallback, Status.ERROR, str(error))
        log.error("%s", error)  # noqa: TRY400 - the line says it all
        return FAILED
    if "--follow" in words:
        settings = attrs.evolve(settings, follow=True)
    if "--compat" in words[:-1]:
        settings = attrs.evolve(settings, compat=words[words.index("--compat") + 1])
    poll_s = float(os.environ.get(POLL_VARIABLE) or POLL_S)
    runner = Runner(settings, write_report=write_report, make_folds=make_folds, poll_s=poll_s)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: runner.stop())
    started = time.monotonic()
    status, details = runner.run()
    log.info(
        "%s: %s%s (%.1f s)", settings.rule, status.value, f": {details}" if details else "", time.monotonic() - started
    )
    return FAILED if status is Status.ERROR else OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
