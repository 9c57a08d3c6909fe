"""A process that leaves by `os._exit`, which calls no exit functions: what is queued is written first."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

from sm_profiler.hook.collector import Collector
from sm_profiler.hook.patches import Patches

if TYPE_CHECKING:
    from sm_profiler.hook.session import Session

CODES = range(-(2**31), 2**31)  # that `os._exit` takes; with others it raises, and the process goes on


class Leaving(Collector):
    """Wraps `os._exit`."""

    name = "os._exit"
    follows_steps = False

    def __init__(self, session: Session) -> None:
        self._session = session
        self._patches = Patches(functools.partial(session.guard.failed, self.name))

    def install(self) -> None:
        """Wrap the function."""
        self._patches.replace(os, "_exit", self._wrap)

    def _wrap(self, original: Any) -> Any:
        session = self._session

        @functools.wraps(original)
        def leave(*args: Any, **kwargs: Any) -> Any:
            code = args[0] if args else kwargs.get("status")
            if isinstance(code, int) and code in CODES:
                with session.guarded(self.name):
                    session.leave(code & 0xFF)
            return original(*args, **kwargs)

        return leave

    def failed(self) -> None:
        """Restore the function."""
        self._patches.remove()

    def exit(self) -> None:
        """Restore the function."""
        self._patches.remove()
