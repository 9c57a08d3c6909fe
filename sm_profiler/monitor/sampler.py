"""Samples every family at each tick and writes the rows, until told to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from sm_profiler.formats.system_writer import Measurement, SystemWriter, recover_minutes
from sm_profiler.monitor.clock import Ticker
from sm_profiler.monitor.gpu import GpuFamily
from sm_profiler.monitor.limits import Limits
from sm_profiler.monitor.metric_sources import Cpu, Disk, Family, Memory, Network
from sm_profiler.monitor.nvml import find_gpus
from sm_profiler.printable import logger_for

logger = logger_for("sm_profiler")

SHORTEST_MS, LONGEST_MS = 100, 60_000
OWN = "monitor"  # the type of the rows in which the monitor tells of itself
OWN_EVERY_S = 60.0
PATIENCE = 5  # failures in a row, then a family is left out


def machine_families(interface: str = "") -> list[Family]:
    """Every family that this machine has.

    Args:
        interface: the network interface over which the hosts of the job talk, or "".
    """
    limits = Limits()
    return [Cpu(limits), GpuFamily(find_gpus), Memory(limits), Disk(), Network(interface)]


@attrs.define(eq=False)
class Sampler:
    """One node's monitor.

    Attributes:
        root: the `profiler-output` folder on this machine.
        node: `algo-1`.
        interval_s: seconds between ticks.
        families: what is measured; one that keeps failing is named once and left out.
        wall: seconds since the epoch.
        monotonic: seconds, never running backwards.
        cpu_seconds: CPU time of this thread, for the monitor's own cost.
        ticks: ticks so far.
    """

    root: Path
    node: str
    interval_s: float
    families: Sequence[Family] = attrs.field(factory=machine_families)
    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    cpu_seconds: Callable[[], float] = time.thread_time
    ticks: int = 0
    _writer: SystemWriter = attrs.field(init=False)
    _ticker: Ticker | None = attrs.field(default=None, init=False)
    _failed: dict[str, int] = attrs.field(factory=dict, init=False)
    _said_disk: bool = attrs.field(default=False, init=False)
    _told: tuple[float, float, int, int] | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._writer = SystemWriter(self.root, self.node)

    def run(self, stop: threading.Event) -> None:
        """Sample until `stop` is set; the open minute is finished then."""
        recover_minutes(self.root, self.node)
        self._ticker = ticker = Ticker(self.interval_s, self.monotonic)
        self.tick()
        while not stop.wait(ticker.wait_seconds()):
            self.tick()
            ticker.advance()
        self._tell_of_itself(self.monotonic())
        self._writer.finish()

    def tick(self) -> None:
        """Measure and write each family once."""
        self.ticks += 1
        for family in self.families:
            failures = self._failed.get(family.name, 0)
            if failures >= PATIENCE:
                continue
            try:
                rows = family.measure(self.monotonic())
            except Exception as error:  # noqa: BLE001 - one family that fails must not take the others with it
                self._failed[family.name] = failures + 1
                if failures + 1 == PATIENCE or isinstance(error, ImportError):
                    self._failed[family.name] = PATIENCE
                    what = f"{type(error).__name__}: {error}"
                    logger.warning("sm-profiler: %s is not measured: %s", family.name, what)
                continue
            if failures:
                self._failed[family.name] = 0
            self._writer.write(self.wall(), rows)
        now = self.monotonic()
        if self._told is None or now - self._told[0] >= OWN_EVERY_S:
            self._tell_of_itself(now)
        self._writer.tick(self.wall())
        if self._writer.error and not self._said_disk:
            self._said_disk = True
            logger.warning("sm-profiler: system metrics cannot be written: %s", self._writer.error)

    def _tell_of_itself(self, now: float) -> None:
        """Once a minute: the share of a core that this thread took, and the ticks that came late or not at all."""
        ticker, last = self._ticker, self._told
        late, missed = (ticker.late, ticker.missed) if ticker else (0, 0)
        self._told = (now, self.cpu_seconds(), late, missed)
        if last is None or now <= last[0]:
            return
        rows = [
            Measurement(OWN, "MonitorCPUPercent", "", 100 * (self._told[1] - last[1]) / (now - last[0])),
            Measurement(OWN, "MonitorLateTicks", "", late - last[2]),
            Measurement(OWN, "MonitorMissedTicks", "", missed - last[3]),
        ]
        self._writer.write(self.wall(), rows)
