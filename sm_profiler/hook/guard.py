"""Fail open: an internal error costs the collector in which it happened and one log line, and nothing else."""

from __future__ import annotations

import attrs

from sm_profiler.hook.foreign import pass_on
from sm_profiler.printable import logger_for

logger = logger_for("sm_profiler")


@attrs.define(eq=False)
class Guard:
    """Failures of collectors: the first is logged as a warning, all are listed in the report.

    Attributes:
        failures: collector → its first error, in one line.
        count: number of errors caught.
    """

    failures: dict[str, str] = attrs.field(factory=dict)
    count: int = 0

    def failed(self, collector: str, error: BaseException) -> None:
        """Switch a collector off; an error of the script that passed through the hook is raised again."""
        pass_on(error)
        self.count += 1
        if collector not in self.failures:
            self.failures[collector] = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
            text = f"{collector} switched off, training continues: {self.failures[collector]}"
            if len(self.failures) == 1:
                self.warn(text)
            else:  # a log full of warnings helps less than one; the report lists them all
                logger.info("sm-profiler: %s", text)

    def warn(self, text: str) -> None:
        """Log one line; an error in a log handler counts and is otherwise ignored."""
        try:
            logger.warning("sm-profiler: %s", text)
        except Exception as error:  # a user's handler may raise anything
            pass_on(error)
            self.count += 1

    def is_off(self, collector: str) -> bool:
        """Return whether a collector has failed."""
        return collector in self.failures
