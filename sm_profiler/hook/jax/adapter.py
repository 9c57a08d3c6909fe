"""The adapter for JAX."""

from __future__ import annotations

from importlib import import_module
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from sm_profiler.formats.event_names import COMPILE
from sm_profiler.hook.adapter import FrameworkAdapter

if TYPE_CHECKING:
    from sm_profiler.hook.session import Session

JAX = "jax"
COMPILED = "/jax/core/compile/backend_compile_duration"


class JaxAdapter(FrameworkAdapter):
    """Listens to JAX's reports of compilations."""

    framework = JAX

    def __init__(self, session: Session) -> None:
        self.session = session

    def install(self) -> None:
        """Listen."""
        import_module("jax.monitoring").register_event_duration_secs_listener(self._heard)

    def remove(self) -> None:
        """Stop to listen."""
        monitoring: Any = import_module("jax._src.monitoring")
        if self._heard in monitoring.get_event_duration_listeners():
            monitoring.unregister_event_duration_listener(self._heard)

    def _heard(self, event: str, seconds: float, **about: Any) -> None:
        if event != COMPILED or self.session.quiet:
            return
        try:
            now, name = perf_counter_ns(), str(about.get("fun_name", ""))
            self.session.append((COMPILE, name, now - int(seconds * 1e9), now, self.session.tracker.number, None))
        except Exception as error:  # noqa: BLE001 - fail open
            self.session.guard.failed(JAX, error)
