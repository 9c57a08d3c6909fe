"""TensorFlow's profiler, for the detailed window."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from sm_profiler.hook.xplane_window import SESSION, Profiler

OPTIONS = {"host_tracer_level": 2, "python_tracer_level": 0, "device_tracer_level": 1}


class TensorFlowProfiler(Profiler):
    """Profiles host and devices; TensorFlow writes the trace itself as it stops."""

    framework = "tensorflow"

    def __init__(self) -> None:
        self._owner: Any = import_module("tensorflow.python.profiler.profiler_v2")
        self.module = self._owner._pywrap_profiler  # TensorFlow's own name

    def is_busy(self) -> bool:
        """Return whether the script profiles."""
        return self._owner._profiler is not None  # TensorFlow has no public function for it

    def start(self, folder: Path) -> Any:
        """Start profiling."""
        session = getattr(self.module, SESSION)()
        session.start(str(folder), OPTIONS)
        return session, folder

    def stop(self, session: Any) -> Callable[[Path], None]:
        """Stop profiling; return what moves the trace to its place."""
        running, folder = session
        running.export_to_tb()

        def write(path: Path) -> None:
            next(folder.glob("plugins/profile/*/*.xplane.pb")).rename(path)

        return write
