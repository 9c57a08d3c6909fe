"""The engine: one pass over a source feeds every rule and any other fold."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol

import attrs

from sm_profiler.rules.builtin import Compat
from sm_profiler.rules.profiler_report import ProfilerReport, one_line
from sm_profiler.rules.results import RuleResults
from sm_profiler.rules.window import MINUTE_US, BatchLike, EvaluationWindow, WindowCutter

LATE_S = 90.0  # a node that still runs uploads a system file every minute
POLL_S = 10.0


class Fold(Protocol):
    """Reduces the windows of a job, one after another, in constant memory."""

    def update(self, window: EvaluationWindow) -> object:
        """Add the next window."""

    def merge(self, other: Any) -> None:
        """Absorb another fold of the same kind that saw other nodes or other minutes of the job."""

    def result(self) -> Any:
        """Return the result for all windows so far; more windows may follow."""


class SourceLike(Protocol):
    """The part of `sm_profiler.source.ProfileSource` that the engine uses."""

    @property
    def finished(self) -> bool:
        """True if no more data will come."""

    @property
    def first_timestamp_us(self) -> int | None:
        """Time of the earliest file, in microseconds."""

    def refresh(self) -> int:
        """Look for new files."""

    def batches(self, *, unsettled: bool = False) -> Iterable[BatchLike]:
        """Return what no earlier call has returned, in the order of time."""


@attrs.define
class Following:
    """Options for following a running job.

    Attributes:
        stop: called between polls; True ends the evaluation as if the job had ended.
        poll_s: seconds between two refreshes of the source.
        sleep: waits; may return early.
        caught_up: called before waiting, once all available data has been evaluated.
    """

    stop: Callable[[], bool] = bool
    poll_s: float = POLL_S
    sleep: Callable[[float], object] = time.sleep
    caught_up: Callable[[], object] = bool


def service_limit_us(source: SourceLike, interval_us: int = MINUTE_US) -> int | None:
    """Return the time before which windows have to start for the managed service to evaluate them.

    That is the last system minute, or the time of the last trace file if that is earlier. While the job runs, the end of
    the window has to lie before it. None if the source has no list of files.
    """
    last: dict[bool, int] = {}
    for item in getattr(source, "files", ()):
        last[item.is_system] = max(item.at_us, last.get(item.is_system, 0))
    if not last:
        return None
    return min(last.values()) if source.finished else min(last.values()) - interval_us + 1


def others_may_follow(source: SourceLike) -> bool:
    """Return True if files of other nodes may still come: the first node that is done writes the end marker."""
    files = getattr(source, "files", ())
    if len({item.host for item in files}) < 2:  # noqa: PLR2004 - with one node there are no others
        return False
    last_us: int = max(item.at_us + MINUTE_US * item.is_system for item in files)
    return time.time() < last_us / 1e6 + LATE_S


def windows(
    source: SourceLike, *, follow: bool | Following = False, interval_us: int = MINUTE_US
) -> Iterator[EvaluationWindow]:
    """Cut a source into windows; yield each as soon as its rows are complete."""
    following = Following() if follow is True else follow
    cutter = WindowCutter(source.first_timestamp_us, interval_us)
    while True:
        finished = source.finished  # before the rows are read: rows written before the end marker are then complete
        cutter.service_limit_us = service_limit_us(source, interval_us)
        for batch in source.batches(unsettled=not following):
            cutter.add(batch)
            yield from cutter.ready()
        if not following or (finished and not others_may_follow(source)) or following.stop():
            break
        yield from cutter.ready(eager=True)
        following.caught_up()
        following.sleep(following.poll_s)
        source.refresh()
    if following:
        for batch in source.batches(unsettled=True):
            cutter.add(batch)
    yield from cutter.rest()


def run_folds(
    source: SourceLike,
    folds: Iterable[Fold],
    *,
    follow: bool | Following = False,
    on_window: Callable[[EvaluationWindow], object] | None = None,
    interval_us: int = MINUTE_US,
) -> dict[int, str]:
    """Feed all folds in one pass; `on_window` is called after each window.

    A fold that raises gets no further windows.

    Returns:
        Index of each fold that raised → one line about the error.
    """
    all_folds = list(folds)
    broken: dict[int, str] = {}
    for window in windows(source, follow=follow, interval_us=interval_us):
        for index, fold in enumerate(all_folds):
            if index not in broken:
                try:
                    fold.update(window)
                except Exception as error:  # noqa: BLE001 - one fold's error must not stop the others
                    broken[index] = one_line(error)
        if on_window is not None:
            on_window(window)
    return broken


def run_rules(  # noqa: PLR0913 - all but the source are options
    source: SourceLike,
    *,
    parameters: Mapping[str, object] | None = None,
    compat: Compat = None,
    extra_folds: Iterable[Fold] = (),
    follow: bool | Following = False,
    on_window: Callable[[EvaluationWindow, RuleResults], object] | None = None,
) -> RuleResults:
    """Evaluate all rules in one pass.

    Args:
        source: the job's data.
        parameters: `{"<RuleName>_<parameter>": value}`; values may be strings.
        compat: "service" for the managed service's numbers, its faults included.
        extra_folds: more folds to feed in the same pass; one that raises gets no further windows, and is listed in
            `broken` under its class name.
        follow: wait for more data until the job is over.
        on_window: called after each window with the results so far.

    Raises:
        ConfigError: an unknown parameter or a bad value.
    """
    report = ProfilerReport(compat=compat, **dict(parameters or {}))
    extras = list(extra_folds)
    broken = run_folds(
        source,
        [report, *extras],
        follow=follow,
        on_window=None if on_window is None else lambda window: on_window(window, report.results()),
        interval_us=report.parameters.scan_interval_us,
    )
    results = report.results()
    for index, line in broken.items():
        results.broken[type(extras[index - 1]).__name__] = line
    return results
