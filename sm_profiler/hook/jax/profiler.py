"""JAX's profiler, for the detailed window."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from sm_profiler.hook.jax.calls import Calls
from sm_profiler.hook.xplane_window import SESSION, Profiler


class JaxProfiler(Profiler):
    """Profiles host and devices, without JAX's own tracing of Python, which would slow the steps."""

    framework = "jax"

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._state: Any = import_module("jax._src.profiler")
        self.module = import_module("jax._src.lib")._profiler  # JAX's own name

    def prepare(self) -> None:
        """Keep the results of calls from now on, to wait for them when the window starts."""
        self._calls.keep_results(on=True)

    def is_busy(self) -> bool:
        """Return whether the script profiles."""
        return self._state._profile_state.profile_session is not None  # JAX has no public function for it

    def start(self, folder: Path) -> Any:  # JAX returns the trace instead of writing it
        """Start profiling."""
        self._calls.settle()  # what began before the window
        self._calls.keep_results(on=True)
        options = self._state.ProfileOptions()
        options.python_tracer_level = 0
        return getattr(self.module, SESSION)(options)

    def stop(self, session: Any) -> Callable[[Path], None]:
        """Stop profiling; return what writes the trace."""
        self._calls.settle()  # the window's last step
        self._calls.keep_results(on=False)
        trace: bytes = session.stop()

        def write(path: Path) -> None:
            path.write_bytes(trace)

        return write
