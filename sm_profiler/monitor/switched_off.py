"""The job's configuration file as a switch: `DisableProfiler` in it ends the sampling of a running job."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import attrs

from sm_profiler.config import load_profile
from sm_profiler.signals import StopEvent

LOOK_SECONDS = 1.0


@attrs.define(eq=False)
class SwitchedOff:
    """Is set while another event is, or while `DisableProfiler` is true in a configuration file.

    A file that is gone, or that is half written, changes nothing.

    Attributes:
        stop: the other event.
        config: the file; "" for a configuration that cannot change.
        clock: monotonic clock in seconds.
    """

    stop: StopEvent
    config: str
    clock: Callable[[], float] = time.monotonic
    _looked: float = attrs.field(default=float("-inf"), init=False)
    _changed: int = attrs.field(default=0, init=False)
    _off: bool = attrs.field(default=False, init=False)

    def is_set(self) -> bool:
        """Return whether to stop."""
        return self.stop.is_set() or self._is_off()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the other event is set, for `timeout` seconds at most; return whether to stop."""
        return self.stop.wait(timeout) or self._is_off()

    def _is_off(self) -> bool:
        if self.config and self.clock() - self._looked >= LOOK_SECONDS:
            self._looked = self.clock()
            try:
                changed = Path(self.config).stat().st_mtime_ns
                if changed != self._changed:
                    self._off = load_profile(Path(self.config).read_text("utf-8-sig")).disabled
                    self._changed = changed
            except (OSError, ValueError):
                pass
        return self._off
