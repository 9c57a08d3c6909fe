"""Fail open: an error of ours costs the collector that had it, one line in the log, and nothing else."""

from __future__ import annotations

import logging

import attrs

logger = logging.getLogger("sm_profiler")


@attrs.define(eq=False)
class Guard:
    """Which collectors have failed; the first failure of all is a warning, what follows stands in the report.

    Attributes:
        failures: collector → what went wrong first, in one line.
        count: errors caught in all.
    """

    failures: dict[str, str] = attrs.field(factory=dict)
    count: int = 0

    def failed(self, collector: str, error: BaseException) -> None:
        """Switch a collector off."""
        self.count += 1
        if collector not in self.failures:
            self.failures[collector] = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
            text = f"{collector} switched off, training goes on: {self.failures[collector]}"
            if len(self.failures) == 1:
                self.warn(text)
            else:  # one warning is a help, ten are a nuisance; the report names them all
                logger.info("sm-profiler: %s", text)

    def warn(self, text: str) -> None:
        """One line to the log; a log that fails is no reason to fail."""
        try:
            logger.warning("sm-profiler: %s", text)
        except Exception:  # noqa: BLE001 - a handler of the user's may raise anything
            self.count += 1

    def is_off(self, collector: str) -> bool:
        """Whether a collector has failed."""
        return collector in self.failures
