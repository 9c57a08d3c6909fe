"""The detailed window: torch.profiler over whole steps, and a span for each submodule's forward.

The profiler starts and stops on the training thread at step boundaries.  Its trace is exported on the hook's background
thread, and turned into events by a process of its own (`sm_profiler.hook.convert`).
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from sm_profiler.formats.event_names import FORWARD_MODULE
from sm_profiler.hook import conversion
from sm_profiler.hook.pytorch.forward import ShyHook

if TYPE_CHECKING:
    from collections.abc import Callable

    from sm_profiler.hook.core import Hook
    from sm_profiler.hook.pytorch.forward import Forwards

MAX_STEPS = 100  # a trace of more is neither read by anyone nor held in memory by a training
MAX_MODULES = 2000


class DetailedWindow:
    """Operators, kernels and submodules of the steps in the window."""

    def __init__(self, hook: Hook, torch: Any, forwards: Forwards) -> None:
        self._hook = hook
        self._torch = torch
        self._forwards = forwards
        self.profiler: Any = None  # while the window is open
        self._unpatch: Callable[[], None] = lambda: None
        self._handles: list[Any] = []
        self._first_step = 0
        self._steps: list[tuple[int, int]] = []  # number within the mode, start in microseconds since the epoch
        self._children: list[subprocess.Popen[bytes]] = []

    # the collector

    def enter(self, step: int) -> None:
        """Start the profiler, unless another one is active."""
        if self._torch.autograd._profiler_enabled():  # noqa: SLF001 - the only way to know
            self._hook.notes["detailed"] = "left out: another torch profiler was active"
            self._hook.guard.warn("the detailed window is left out: another torch profiler is active")
            return
        activities = [self._torch.profiler.ProfilerActivity.CPU]
        if self._torch.cuda.is_available() and self._torch.cuda.is_initialized():
            activities.append(self._torch.profiler.ProfilerActivity.CUDA)
        profiler = self._torch.profiler.profile(activities=activities)
        profiler.start()
        self.profiler, self._first_step, self._steps = profiler, step, []
        self._make_way()
        self._watch_modules()

    def leave(self, step: int) -> None:  # noqa: ARG002 - the protocol's
        """Stop the profiler; what it saw is exported elsewhere."""
        profiler, self.profiler = self.profiler, None
        self._unwatch()
        if profiler is None:
            return
        self._steps.append((-1, self._hook.timebase.now_us()))
        profiler.stop()
        steps, first = self._steps, self._first_step
        self._hook.recorder.tasks.append(lambda: self._export(profiler, first, steps))

    def forget(self) -> None:
        """In a forked child: the profiler is the parent's, and must not be touched."""
        self.profiler = None
        self._children = []
        self._unwatch()

    def drop(self) -> None:
        """Stop, and forget what was seen."""
        profiler, self.profiler = self.profiler, None
        self._unwatch()
        if profiler is not None:
            profiler.stop()

    def step_begins(self, number: int) -> None:
        """A step of the window begins; a window without an end in sight is cut."""
        if self.profiler is not None:
            self._steps.append((number, self._hook.timebase.now_us()))
            if len(self._steps) > MAX_STEPS:
                self._hook.notes["detailed"] = f"cut after {MAX_STEPS} steps"
                self.leave(-1)

    def wait(self) -> None:
        """The training ends: let conversions finish."""
        for child in self._children:
            if not conversion.finish(child):
                self._hook.notes["detailed"] = "the conversion of the trace took too long"

    # parts

    def _make_way(self) -> None:
        """A profiler that the script starts meanwhile gets the place; two at once are an error in torch."""
        owner, ours, window = self._torch.autograd.profiler.profile, self.profiler.profiler, self
        original = owner._prepare_trace  # noqa: SLF001 - what every way of starting one comes through

        def _prepare_trace(this: Any, *args: Any, **kwargs: Any) -> Any:
            if this is not ours:
                try:
                    window._hook.notes["detailed"] = "cut short: the script started a profiler of its own"
                    window.leave(-1)
                except Exception as error:  # noqa: BLE001 - fail open
                    window._hook.guard.failed("detailed", error)
            return original(this, *args, **kwargs)

        owner._prepare_trace = _prepare_trace  # noqa: SLF001 - put back when the window closes

        def unpatch() -> None:
            owner._prepare_trace = original  # noqa: SLF001 - as it was

        self._unpatch = unpatch

    def _watch_modules(self) -> None:
        """Spans for submodules; not where something is compiled, which would have to be compiled again."""
        if self._forwards.compiled:
            self._hook.notes["submodules"] = "left out: the model is compiled"
            return
        tracker, starts = self._hook.tracker, dict[int, list[int]]()

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

    def _export(self, profiler: Any, first: int, steps: list[tuple[int, int]]) -> None:
        """On the background thread: the raw trace to a file, and a process that makes the rest of it."""
        hook = self._hook
        handle, raw = tempfile.mkstemp(prefix="sm-profiler-", suffix=".json")
        os.close(handle)
        profiler.export_chrome_trace(raw)
        order = {
            "trace": raw,
            "root": str(hook.root),
            "source": hook.recorder.writer.source,
            "node": hook.node,
            "pid": os.getpid(),
            "first_step": first,
            "steps": steps,
        }
        self._children.append(conversion.start("sm_profiler.hook.convert", order))
