"""Samples every family at each tick and writes the rows, until told to stop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from sm_profiler.formats.system_writer import SystemWriter, recover_minutes
from sm_profiler.monitor.clock import Ticker
from sm_profiler.monitor.families import Cpu, Disk, Family, Memory, Network
from sm_profiler.monitor.limits import Limits

logger = logging.getLogger("sm_profiler")


def machine_families() -> list[Family]:
    """Every family that this machine has."""
    limits = Limits()
    return [Cpu(limits), Memory(limits), Disk(), Network()]


@attrs.define(eq=False)
class Sampler:
    """One node's monitor.

    Attributes:
        root: the `profiler-output` folder on this machine.
        node: `algo-1`.
        interval_s: seconds between ticks.
        families: what is measured; one that fails is named once and left out.
    """

    root: Path
    node: str
    interval_s: float
    families: Sequence[Family] = attrs.field(factory=machine_families)
    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    ticks: int = 0
    _writer: SystemWriter = attrs.field(init=False)
    _broken: set[str] = attrs.field(factory=set, init=False)
    _said_disk: bool = attrs.field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._writer = SystemWriter(self.root, self.node)

    def run(self, stop: threading.Event) -> None:
        """Sample until `stop` is set; the open minute is finished then."""
        recover_minutes(self.root, self.node)
        ticker = Ticker(self.interval_s, self.monotonic)
        self.tick()
        while not stop.wait(ticker.wait_seconds()):
            self.tick()
            ticker.advance()
        self._writer.finish()

    def tick(self) -> None:
        """Measure and write each family once."""
        self.ticks += 1
        for family in self.families:
            if family.name in self._broken:
                continue
            try:
                rows = family.measure(self.monotonic())
            except Exception as error:  # noqa: BLE001 - one family that fails must not take the others with it
                self._broken.add(family.name)
                logger.warning("sm-profiler: %s is not measured: %s: %s", family.name, type(error).__name__, error)
                continue
            self._writer.write(self.wall(), rows)
        self._writer.tick(self.wall())
        if self._writer.error and not self._said_disk:
            self._said_disk = True
            logger.warning("sm-profiler: system metrics cannot be written: %s", self._writer.error)
