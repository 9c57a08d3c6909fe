"""Sampling: every metric source is read at fixed times, and its rows are written to the minute's file."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from sm_profiler.formats.system_writer import Measurement, SystemWriter, recover_minutes
from sm_profiler.limits import Limits
from sm_profiler.monitor.board import Board
from sm_profiler.monitor.gpu import GpuSource, find_gpus
from sm_profiler.monitor.metric_sources import Cpu, Disk, Memory, MetricSource, Network
from sm_profiler.monitor.owner import Owner
from sm_profiler.monitor.pressure import Nfs, Pressure, Swapping
from sm_profiler.printable import logger_for
from sm_profiler.signals import StopEvent

logger = logger_for("sm_profiler")

MIN_INTERVAL_MS, MAX_INTERVAL_MS = 100, 60_000
OWN = "monitor"  # type of the rows that describe the monitor itself
OWN_EVERY_S = 60.0
MAX_FAILURES = 5  # in a row, after which a source is left out


@attrs.define(eq=False)
class Ticker:
    """Ticks every `interval` seconds of a monotonic clock; a late tick does not delay the ones after it.

    Attributes:
        interval: seconds.
        late: ticks that were late by more than half an interval.
        missed: ticks that were skipped because the next one was due already.
    """

    interval: float
    clock: Callable[[], float] = time.monotonic
    late: int = 0
    missed: int = 0
    _due: float = attrs.field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        self._due = self.clock() + self.interval

    def wait_seconds(self) -> float:
        """Return the time until the next tick; 0 if it is due."""
        return max(self._due - self.clock(), 0.0)

    def advance(self) -> None:
        """Finish a tick; the next one is due a whole number of intervals later, in the future."""
        behind = self.clock() - self._due
        if behind > self.interval / 2:
            self.late += 1
        skipped = max(int(behind // self.interval), 0)
        self.missed += skipped
        self._due += self.interval * (skipped + 1)


def machine_sources(interface: str = "") -> list[MetricSource]:
    """Return all metric sources of this machine.

    Args:
        interface: the network interface that connects the job's nodes, or "".
    """
    limits = Limits()
    return [
        Cpu(limits), GpuSource(find_gpus), Memory(limits), Disk(), Network(interface), Swapping(), Pressure(), Nfs(),
        Owner(),
    ]  # fmt: skip


@attrs.define(eq=False)
class Sampler:
    """Samples one node.

    Attributes:
        root: the `profiler-output` folder on this machine.
        node: `algo-1`.
        interval_s: seconds between ticks.
        sources: what is measured; a source that keeps failing is reported once and left out.
        wall: clock in seconds since the epoch.
        monotonic: monotonic clock in seconds.
        cpu_seconds: CPU time of this thread, for the monitor's own cost.
        board: gets the newest values, too.
        ticks: number of ticks so far.
    """

    root: Path
    node: str
    interval_s: float
    sources: Sequence[MetricSource] = attrs.field(factory=machine_sources)
    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    cpu_seconds: Callable[[], float] = time.thread_time
    board: Board | None = None
    ticks: int = 0
    _writer: SystemWriter = attrs.field(init=False)
    _ticker: Ticker | None = attrs.field(default=None, init=False)
    _failures: dict[str, int] = attrs.field(factory=dict, init=False)
    _reported_disk: bool = attrs.field(default=False, init=False)
    _last_own: tuple[float, float, int, int] | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._writer = SystemWriter(self.root, self.node)

    def run(self, stop: StopEvent) -> None:
        """Sample until `stop` is set, then close the open minute."""
        recover_minutes(self.root, self.node)
        self._ticker = ticker = Ticker(self.interval_s, self.monotonic)
        self.tick()
        while not stop.wait(ticker.wait_seconds()):
            self.tick()
            ticker.advance()
        self._write_own_rows(self.monotonic())
        self._writer.finish()
        if self._writer.dropped:
            logger.warning(
                "sm-profiler: %d rows of system metrics are lost: %s", self._writer.dropped, self._writer.error
            )

    def tick(self) -> None:
        """Read and write each source once."""
        self.ticks += 1
        for source in self.sources:
            failures = self._failures.get(source.name, 0)
            if failures >= MAX_FAILURES:
                continue
            try:
                rows = source.measure(self.monotonic())
            except Exception as error:  # the other sources must go on
                self._failures[source.name] = failures + 1
                if failures + 1 == MAX_FAILURES or isinstance(error, ImportError):
                    self._failures[source.name] = MAX_FAILURES
                    reason = f"{type(error).__name__}: {error}"
                    logger.warning("sm-profiler: no %s metrics: %s", source.name, reason)
                continue
            if failures:
                self._failures[source.name] = 0
            self._writer.write(self.wall(), rows)
            if self.board is not None:
                self.board.update(rows)
        now = self.monotonic()
        if self._last_own is None or now - self._last_own[0] >= OWN_EVERY_S:
            self._write_own_rows(now)
        self._writer.tick(self.wall())
        if self._writer.error and not self._reported_disk:
            self._reported_disk = True
            logger.warning("sm-profiler: system metrics cannot be written: %s", self._writer.error)

    def _write_own_rows(self, now: float) -> None:
        """Write this thread's share of a core, and the ticks that were late or missed, since the last call."""
        ticker, last = self._ticker, self._last_own
        late, missed = (ticker.late, ticker.missed) if ticker else (0, 0)
        self._last_own = (now, self.cpu_seconds(), late, missed)
        if last is None or now <= last[0]:
            return
        rows = [
            Measurement(OWN, "MonitorCPUPercent", "", 100 * (self._last_own[1] - last[1]) / (now - last[0])),
            Measurement(OWN, "MonitorLateTicks", "", late - last[2]),
            Measurement(OWN, "MonitorMissedTicks", "", missed - last[3]),
        ]
        self._writer.write(self.wall(), rows)
