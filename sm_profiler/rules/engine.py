"""The engine: one pass over a source feeds every rule, and whatever else wants to see the windows."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import attrs

from sm_profiler.rules.builtin import Compat
from sm_profiler.rules.profiler_report import ProfilerReport, reason
from sm_profiler.rules.window import MINUTE_US, BatchLike, Window, WindowCutter

LATE_S = 90.0  # a node that still runs uploads a system file a minute
POLL_S = 10.0
REPORTS = "profiler-reports"


class Fold(Protocol):
    """What sees the windows of a job one after another, in constant memory."""

    def update(self, window: Window) -> object:
        """Take the next window."""

    def merge(self, other: Any) -> None:
        """Take in another fold of the same kind that saw other nodes or other minutes of the job."""

    def result(self) -> Any:
        """What was found so far; may be asked again after more windows."""


class SourceLike(Protocol):
    """What the engine needs of a `sm_profiler.source.ProfileSource`."""

    @property
    def finished(self) -> bool:
        """Whether nothing more will come."""

    @property
    def first_timestamp_us(self) -> int | None:
        """The earliest time a file is filed under."""

    def refresh(self) -> int:
        """Look for new files."""

    def batches(self) -> Iterable[BatchLike]:
        """What no earlier call has delivered, in time order."""


@attrs.frozen
class RuleResults:
    """What the rules found.

    Attributes:
        results: rule name → report object (RuleTriggered, Violations, Details, Datapoints, RuleParameters).
        broken: rule name → why it could not be evaluated, one line.
    """

    results: dict[str, dict[str, Any]]
    broken: dict[str, str] = attrs.field(factory=dict)

    @property
    def fired(self) -> list[str]:
        """The rules that fired, in the order in which they ran."""
        return [name for name, result in self.results.items() if result["RuleTriggered"] > 0]


@attrs.define
class Following:
    """How to wait for a running job.

    Attributes:
        stop: asked between polls; True ends the following as if the job had ended.
        poll_s: seconds between two looks at the source.
        sleep: waits; may return early.
        caught_up: called each time all that was there has been seen, before waiting.
    """

    stop: Callable[[], bool] = bool
    poll_s: float = POLL_S
    sleep: Callable[[float], object] = time.sleep
    caught_up: Callable[[], object] = bool


def service_limit_us(source: SourceLike, interval_us: int = MINUTE_US) -> int | None:
    """The managed service looks at windows that start before this moment; None: the list of files is not known.

    That is the last system minute or the last trace file's time, if earlier; while the job runs it waits until that
    is reached by a window's end.
    """
    last: dict[bool, int] = {}
    for item in getattr(source, "files", ()):
        last[item.is_system] = max(item.at_us, last.get(item.is_system, 0))
    if not last:
        return None
    return min(last.values()) if source.finished else min(last.values()) - interval_us + 1


def others_may_follow(source: SourceLike) -> bool:
    """Whether files of other nodes may still come after the end marker, which the first one writes when it is done."""
    files = getattr(source, "files", ())
    if len({item.host for item in files}) < 2:  # noqa: PLR2004 - one node alone has nobody to wait for
        return False
    last_us: int = max(item.at_us + MINUTE_US * item.is_system for item in files)
    return time.time() < last_us / 1e6 + LATE_S


def windows(source: SourceLike, *, follow: bool | Following = False, interval_us: int = MINUTE_US) -> Iterator[Window]:
    """Cut a source into windows, each as soon as its rows have come."""
    waiting = Following() if follow is True else follow
    cutter = WindowCutter(source.first_timestamp_us, interval_us)
    while True:
        finished = source.finished  # asked before the rows are: what is written before the end is read
        cutter.service_limit_us = service_limit_us(source, interval_us)
        for batch in source.batches():
            cutter.add(batch)
            yield from cutter.ready()
        if not waiting or (finished and not others_may_follow(source)) or waiting.stop():
            break
        yield from cutter.ready(eager=True)
        waiting.caught_up()
        waiting.sleep(waiting.poll_s)
        source.refresh()
    yield from cutter.rest()


def run_folds(
    source: SourceLike,
    folds: Iterable[Fold],
    *,
    follow: bool | Following = False,
    on_window: Callable[[Window], object] | None = None,
    interval_us: int = MINUTE_US,
) -> dict[int, str]:
    """Feed all folds in one pass; `on_window` is called after each window.

    A fold that raises gets no further windows.  Returns why, by the fold's place in `folds`; one line each.
    """
    fed = list(folds)
    broken: dict[int, str] = {}
    for window in windows(source, follow=follow, interval_us=interval_us):
        for place, fold in enumerate(fed):
            if place not in broken:
                try:
                    fold.update(window)
                except Exception as error:  # noqa: BLE001 - one fold's fault must not take the others along
                    broken[place] = reason(error)
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
    on_window: Callable[[Window, RuleResults], object] | None = None,
) -> RuleResults:
    """Evaluate all rules in one pass.

    Args:
        source: where the job's data come from.
        parameters: `{"<RuleName>_<parameter>": value}`; values may be strings.
        compat: "service" for the managed service's numbers, faults included.
        extra_folds: folds of the caller's, fed in the same pass; one that raises is left out from there on, and
            reported among `broken` under its class's name.
        follow: wait for more until the job is over.
        on_window: called after each window with what has been found so far.

    Raises:
        ConfigError: a parameter that does not exist or a bad value.
    """
    report = ProfilerReport(compat=compat, **dict(parameters or {}))
    extras = list(extra_folds)

    def found() -> RuleResults:
        return RuleResults(report.results(), dict(report.broken))

    broken = run_folds(
        source,
        [report, *extras],
        follow=follow,
        on_window=None if on_window is None else lambda window: on_window(window, found()),
        interval_us=report.parameters.scan_interval_us,
    )
    results = found()
    for place, why in broken.items():
        results.broken[type(extras[place - 1]).__name__] = why
    return results


def write_rule_reports(results: RuleResults, where: Any) -> list[str]:
    """Write `profiler-reports/<Rule>.json` for each rule, one line each.

    Args:
        results: what `run_rules` gave.
        where: a folder, or a storage (`write(key, data)`).

    Returns:
        The keys written, relative to `where`.
    """
    written = []
    for name, result in results.results.items():
        key = f"{REPORTS}/{name}.json"
        data = (json.dumps(result) + "\n").encode()
        if hasattr(where, "write"):
            where.write(key, data)
        else:
            path = Path(where, key)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        written.append(key)
    return written
