"""Keeps two of the SDK's log messages from the user, because they are untrue of a profile of ours.

SDK v2 logs that framework profiling is deprecated and that no framework metrics will be collected.  Both are dropped once
a ProfilerConfig of ours carries a FrameworkProfile, or where the SDK speaks of a FrameworkProfile of ours; everything else
that the logger says passes.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging

_LOGGER = "sagemaker.deprecations"
_STARTS = (
    "Framework profiling will be deprecated from tensorflow 2.12 and pytorch 2.0",
    "Framework profiling is deprecated from",
)
_DEPTH = 12  # frames between the filter and the SDK's code that speaks; it is 6 to 8


class _Untrue:
    """A filter of `logging`.  Drops the two messages; `everywhere` is set once a ProfilerConfig of ours carries framework parameters."""

    everywhere = False

    def filter(self, record: logging.LogRecord) -> bool:
        """False drops the record."""
        if not str(record.msg).startswith(_STARTS):
            return True
        return not (self.everywhere or _speaks_of_ours())


def _speaks_of_ours() -> bool:
    """Whether the SDK's code that logs holds a FrameworkProfile of ours, as in `Estimator.update_profiler`."""
    frame = sys._getframe()  # noqa: SLF001 - CPython's own way to the callers, without formatting them
    for _ in range(_DEPTH):
        if frame.f_back is None:
            break
        frame = frame.f_back
        carried = frame.f_locals.get("framework_profile_params")
        if carried is None:
            carried = getattr(frame.f_locals.get("profiler_config"), "framework_profile_params", None)
        if type(carried).__module__.startswith("sm_profiler."):
            return True
    return False


_FILTER = _Untrue()


def expect_untrue_warnings(*, everywhere: bool = False) -> None:
    """Drop the two messages where the SDK speaks of ours; `everywhere` whoever it speaks of."""
    import logging  # noqa: PLC0415 - for a quick import of the facade

    _FILTER.everywhere |= everywhere
    logging.getLogger(_LOGGER).addFilter(_FILTER)  # adding it twice changes nothing
