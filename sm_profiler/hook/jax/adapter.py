"""The adapter for JAX: steps from calls of compiled functions or from annotations, compilations, waiting for results."""

from __future__ import annotations

import atexit
import functools
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from sm_profiler.hook.adapter import Collector, FrameworkAdapter
from sm_profiler.hook.detailed import DETAILED, SESSION, DetailedWindow, Profiler
from sm_profiler.hook.host_callbacks import HostCallbacks
from sm_profiler.hook.jax.calls import Calls, describe
from sm_profiler.hook.jax.compilations import Compilations
from sm_profiler.hook.jax.loop import Loop
from sm_profiler.hook.modes import ModeKeys
from sm_profiler.hook.patches import Begin, End, Patches, after, timed
from sm_profiler.hook.settings import rank_from

if TYPE_CHECKING:
    from sm_profiler.hook.session import Session


# The detailed window.


class JaxProfiler(Profiler):
    """Profiles host and devices, without JAX's own tracing of Python, which would slow the steps."""

    framework = "jax"

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._state: Any = import_module("jax._src.profiler")
        self.entry: tuple[Any, str] = import_module("jax._src.lib")._profiler, SESSION  # JAX's own name

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
        return getattr(*self.entry)(options)

    def stop(self, session: Any) -> Callable[[Path], None]:
        """Stop profiling; return what writes the trace."""
        self._calls.settle()  # the window's last step
        self._calls.keep_results(on=False)
        trace: bytes = session.stop()

        def write(path: Path) -> None:
            path.write_bytes(trace)

        return write


# The adapter.


JAX = "jax"
_EVALUATES = re.compile(r"eval|valid|test", re.IGNORECASE)  # in the name of an annotation


class JaxAdapter(FrameworkAdapter):
    """Wraps what `jax.jit` returns, annotations of steps, and the functions that wait for results."""

    framework = JAX
    collectors = frozenset({DETAILED})

    def __init__(self, session: Session) -> None:
        self.session = session
        self._jax: Any = import_module("jax")
        tree = self._jax.tree_util
        tracker = session.tracker
        self._compilations = Compilations(
            session.append,
            lambda: tracker.latest_number,
            functools.partial(describe, tree.tree_flatten_with_path, tree.keystr),
        )
        loop = Loop(tracker, lambda: session.lead(self), tree.tree_leaves)
        self._patches = Patches(session.fail)
        core = import_module("jax._src.core")
        self._calls = Calls(
            session, self._jax, loop, self._compilations, lambda one_by_one: one_by_one.watch(self._patches, core)
        )
        self._callbacks = HostCallbacks(session.append, lambda: tracker.latest_number, session.fail)
        self._listens = False
        self._detailed = DetailedWindow(session, JaxProfiler(self._calls))

    def detailed(self) -> Collector:
        """Return the collector of the detailed window."""
        return self._detailed

    def install(self) -> None:
        """Patch JAX and listen to its reports of compilations."""
        jax, calls, session, put = self._jax, self._calls, self.session, self._patches.put
        for name in ("jit", "pmap"):
            put(jax, name, after(getattr(jax, name), calls.compiled, functools.partial(session.guard.failed, "jit")))
        for name in ("grad", "value_and_grad"):
            put(
                jax,
                name,
                after(getattr(jax, name), calls.differentiated, functools.partial(session.guard.failed, "grad")),
            )
        self._after(jax.stages.Lowered, "compile", calls.compiled_ahead)
        put(jax.stages.Compiled, "__call__", calls.wrap_compiled(jax.stages.Compiled.__call__))
        derivatives = import_module("jax._src.interpreters.ad")
        for name in ("linearize", "vjp"):  # both exist in some versions
            if hasattr(derivatives, name):
                self._around(derivatives, name, calls.differentiates)
        array = import_module("jax._src.array").ArrayImpl
        for owner, name in (
            (jax, "block_until_ready"),
            (jax, "device_get"),
            (array, "block_until_ready"),
            (array, "item"),
        ):
            put(owner, name, calls.wrap_wait(name, getattr(owner, name)))
        value = array._value  # what float(), print() and device_get() read
        put(array, "_value", property(calls.wrap_wait("copy to the host", value.fget)))
        for kind in ("pure_callback", "io_callback"):
            self._wrap_callback("jax._src.callback", "jax.experimental" if kind == "io_callback" else "jax", kind)
        self._wrap_callback("jax._src.debugging", "jax.debug", "debug_callback", "callback")
        annotation = jax.profiler.StepTraceAnnotation
        self._after(annotation, "__init__", self._annotated)
        self._after(annotation, "__enter__", self._begins)
        self._around(annotation, "__exit__", self._ends)
        jax.monitoring.register_event_duration_secs_listener(self._heard)
        self._listens = True
        session.add(self._compilations)
        session.add(self._callbacks)
        session.add(self._calls)
        atexit.register(self._at_exit)

    def _around(self, owner: Any, name: str, begin: Begin, end: End | None = None) -> None:
        """Replace a function of any kind: many of JAX's are in C++, or inherited."""
        self._patches.put(owner, name, timed(getattr(owner, name), begin, end, self.session.fail))

    def _after(self, owner: Any, name: str, action: Callable[..., Any]) -> None:
        self._patches.put(owner, name, after(getattr(owner, name), action, self.session.fail))

    def _at_exit(self) -> None:
        """End an open window before JAX, which was imported earlier, frees its devices and with them what the window waits for."""
        self.session.schedule.leave(DETAILED, -1)

    def _wrap_callback(self, owner: str, shown: str, name: str, shown_name: str = "") -> None:
        """Replace a function where JAX defines it and where scripts find it, once that module is imported."""
        shown_name = shown_name or name
        original = getattr(import_module(owner), name)
        wrapped = self._callbacks.wrap(shown_name, original)
        self._patches.put(import_module(owner), name, wrapped)

        def replace() -> None:
            module = import_module(shown)
            if getattr(module, shown_name, None) is original:
                self._patches.put(module, shown_name, wrapped)

        self._patches.when_loaded(shown, replace)

    def remove(self) -> None:
        """Restore JAX."""
        atexit.unregister(self._at_exit)
        self._patches.remove()
        if self._listens:
            self._listens = False
            import_module("jax._src.monitoring").unregister_event_duration_listener(self._heard)
        for collector in (self._compilations, self._callbacks, self._calls):
            self.session.discard(collector)
        self.session.tracker.release(JAX)

    def rank(self) -> int | None:
        """Return the process's rank in a distributed job."""
        state: Any = import_module("jax._src.distributed").global_state
        return state.process_id if state.client is not None else rank_from()

    def _heard(self, event: str, seconds: float, **about: Any) -> None:
        if not self.session.quiet:
            try:
                self._compilations.heard(event, seconds, **about)
            except Exception as error:  # fail open
                self.session.switch_off(self._compilations, error)

    # annotations

    def _annotated(self, _none: None, annotation: Any, name: str, *_args: Any, **_kwargs: Any) -> None:
        annotation.sm_profiler_mode = ModeKeys.EVAL if _EVALUATES.search(str(name)) else ModeKeys.TRAIN

    def _begins(self, _entered: Any, annotation: Any) -> None:
        tracker = self.session.tracker
        if not self.session.quiet and tracker.owner in ("", JAX) and tracker.claim(JAX):
            self.session.lead(self)
            mode = getattr(annotation, "sm_profiler_mode", ModeKeys.TRAIN)
            tracker.begin_step(perf_counter_ns(), gradients=mode is ModeKeys.TRAIN, mode=mode)

    def _ends(self, *_args: Any) -> None:
        if not self.session.quiet and self.session.tracker.owner == JAX:
            self.session.tracker.end_step(perf_counter_ns())
