"""The detailed window: torch.profiler over whole steps, and a span for each submodule's forward.

The profiler starts and stops on the training thread at step boundaries.  Its trace is exported on the recorder's
thread, and converted to events by a process of its own (`sm_profiler.hook.convert`).
"""

from __future__ import annotations

import os
import tempfile
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from sm_profiler.formats.event_names import FORWARD_MODULE
from sm_profiler.hook.detailed_window import DETAILED, DetailedWindow, Steps
from sm_profiler.hook.pytorch.forward import ShyHook
from sm_profiler.hook.pytorch.kineto import exit_without_destructors, quiet

if TYPE_CHECKING:
    from collections.abc import Callable

    from sm_profiler.hook.pytorch.forward import Forwards
    from sm_profiler.hook.session import Session

MAX_MODULES = 2000


class DetailedCollector(DetailedWindow):
    """Records operators, kernels and submodules of the steps in the window."""

    def __init__(self, session: Session, torch: Any, forwards: Forwards) -> None:
        super().__init__(session)
        self._torch = torch
        self._forwards = forwards
        self._profiler: Any = None  # while the window is open
        self._started = False  # at least once
        self._unpatch: Callable[[], None] = lambda: None
        self._handles: list[Any] = []

    @property
    def is_open(self) -> bool:
        """True while the profiler runs."""
        return self._profiler is not None

    def prepare(self) -> None:
        """Start and stop a profiler: the first start imports modules and initialises libraries for seconds."""
        if self._prepared or self._torch.autograd._profiler_enabled():  # torch has no public function for it
            return
        self._prepared = True
        with self._session.work.doing(f"{DETAILED} window is prepared"), quiet(self._torch):
            profiler = self._torch.profiler.profile(activities=self._activities())
            self._started = True
            profiler.start()
            profiler.stop()

    def _activities(self) -> list[Any]:
        kinds = self._torch.profiler.ProfilerActivity
        on_gpu = self._torch.cuda.is_available() and self._torch.cuda.is_initialized()
        return [kinds.CPU, kinds.CUDA] if on_gpu else [kinds.CPU]

    def enter(self, step: int) -> None:
        """Start the profiler, unless another one is active."""
        with self._session.work.doing(f"{DETAILED} window starts"):
            self._enter(step)

    def _enter(self, step: int) -> None:
        if self._torch.autograd._profiler_enabled():  # torch has no public function for it
            self._session.note(DETAILED, "left out: another torch profiler was active")
            self._session.guard.warn("the detailed window is left out: another torch profiler is active")
            return
        profiler = self._torch.profiler.profile(activities=self._activities())
        self._started = True
        with quiet(self._torch):
            profiler.start()
        self._profiler, self._first_step, self._steps = profiler, step, []
        self._make_way()
        self._watch_modules()

    def leave(self, step: int) -> None:  # the life cycle's
        """Stop the profiler, and schedule the export of its trace."""
        with self._session.work.doing(f"{DETAILED} window stops"):
            self._leave()

    def _leave(self) -> None:
        profiler, self._profiler = self._profiler, None
        self._unwatch()
        if profiler is None:
            return
        self._steps.append((-1, self._session.timebase.now_us()))
        with quiet(self._torch):
            profiler.stop()
        self._export_later(partial(self._export, profiler))

    def forked(self) -> None:
        """Forget the profiler: it is the parent's, and must not be stopped here."""
        if self._started:
            exit_without_destructors()
        if self._profiler is not None:  # it would record the child's operators for as long as the child lives
            self._torch.autograd._enable_record_function(False)  # torch has no public function for it
        self._profiler = None
        self._children, self._converting = [], []
        self._unwatch()

    def failed(self) -> None:
        """Stop the profiler and discard its trace."""
        profiler, self._profiler = self._profiler, None
        self._unwatch()
        if profiler is not None:
            with quiet(self._torch):
                profiler.stop()

    # parts

    def _make_way(self) -> None:
        """Stop when the script starts a profiler of its own: two at once are an error in torch."""
        owner, ours, collector = self._torch.autograd.profiler.profile, self._profiler.profiler, self
        original = owner._prepare_trace  # all ways of starting one call it

        def _prepare_trace(this: Any, *args: Any, **kwargs: Any) -> Any:
            if this is not ours:
                try:
                    collector._session.note(DETAILED, "cut short: the script started a profiler of its own")
                    collector.leave(-1)
                except Exception as error:  # fail open
                    collector._session.guard.failed(DETAILED, error)
            return original(this, *args, **kwargs)

        owner._prepare_trace = _prepare_trace  # restored when the window closes

        def unpatch() -> None:
            owner._prepare_trace = original

        self._unpatch = unpatch

    def _watch_modules(self) -> None:
        """Add hooks for the spans of submodules, unless a model is compiled: hooks would compile it again."""
        if self._forwards.compiled:
            self._session.note("submodules", "left out: the model is compiled")
            return
        tracker, starts = self._session.tracker, dict[int, list[int]]()

        def before(module: Any, _args: Any) -> None:
            if tracker.forward_key:
                starts.setdefault(id(module), []).append(perf_counter_ns())

        def make_after(name: str) -> Callable[[Any, Any, Any], None]:
            def after(module: Any, _args: Any, _output: Any) -> None:
                began = starts.get(id(module))
                if began:
                    tracker.append((FORWARD_MODULE, name, began.pop(), perf_counter_ns(), tracker.number, None))

            return after

        for root in self._forwards.models():
            for count, (name, module) in enumerate(root.named_modules()):
                if name and count < MAX_MODULES:
                    self._handles.append(module.register_forward_pre_hook(ShyHook(before)))
                    self._handles.append(module.register_forward_hook(ShyHook(make_after(name)), always_call=True))

    def _unwatch(self) -> None:
        self._unpatch()
        self._unpatch = lambda: None
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _export(self, profiler: Any, first: int, steps: Steps) -> None:
        """Export the trace and start its conversion, on the recorder's thread."""
        handle, raw = tempfile.mkstemp(prefix="sm-profiler-", suffix=".json")
        os.close(handle)
        profiler.export_chrome_trace(raw)
        self._convert("sm_profiler.hook.convert", first, steps, trace=raw, node=self._session.node)
