"""Puts the hook into PyTorch, and takes it out again."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from importlib import import_module
from time import perf_counter_ns
from types import CodeType
from typing import TYPE_CHECKING, Any

from sm_profiler.hook.auto import when_loaded
from sm_profiler.hook.horovod_window import HOROVOD, add_horovod_window
from sm_profiler.hook.modes import ModeKeys
from sm_profiler.hook.python_window import add_python_window, why_not
from sm_profiler.hook.pytorch.cuda import CudaWatch
from sm_profiler.hook.pytorch.detailed import DetailedWindow
from sm_profiler.hook.pytorch.forward import Forwards, compiling_check
from sm_profiler.hook.pytorch.loader import DATALOADER, Loaders
from sm_profiler.hook.steps import METER_MOST_NS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sm_profiler.hook.core import Hook

RUNS_WHILE_TRAINING = tuple(
    f"sm_profiler.hook.{name}"
    for name in (
        "core",
        "guard",
        "steps",
        "windows",
        "pytorch.adapter",
        "pytorch.cuda",
        "pytorch.cuda_events",
        "pytorch.forward",
        "pytorch.loader",
    )
)


def own_code() -> Iterator[CodeType]:
    """All code of the hook that runs on the training thread, functions within functions included."""
    for name in RUNS_WHILE_TRAINING:
        module = import_module(name)
        for thing in vars(module).values():
            functions = vars(thing).values() if isinstance(thing, type) else (thing,)
            for function in functions:
                code = getattr(inspect.unwrap(function) if callable(function) else None, "__code__", None)
                if code is not None and code.co_filename == module.__file__:
                    yield from _with_inner(code)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _with_inner(inner)


DETAILED, PYTHON = "detailed", "python"
FIRST_ITERATORS = 8  # of a loader, at whose beginning unknown models are looked for; later ones no more than
LOOK_EVERY_NS = 1_000_000_000


class PyTorchAdapter:
    """Everything that is installed into torch for one hook."""

    provides = frozenset({DATALOADER, DETAILED, PYTHON, HOROVOD})

    def __init__(self, hook: Hook, torch: Any) -> None:
        self._hook = hook
        self._torch = torch
        self._known_optimizers: set[int] = set()
        self._known_modes: set[ModeKeys] = set()
        self._detailed: DetailedWindow | None = None
        self._handles: list[Any] = []
        self._backward: Any = None
        self._optimizer: Any = None
        self._compilations: Any = None  # torch's handler of callbacks
        self._iterators = 0
        self._looked_ns = 0
        self._made: Any = None  # the optimizers' own constructor
        self.forwards = Forwards(hook, torch)
        self.loaders = Loaders(hook, torch, self.forwards)
        self._cuda = CudaWatch(hook, torch, self.forwards.models)

    def install(self) -> None:
        """Install everything; nothing is started before the first step."""
        hook, torch = self._hook, self._torch
        hook.find_rank = self._rank
        hook.available.add(DATALOADER)
        hook.is_helper = lambda: torch.utils.data.get_worker_info() is not None
        hook.at_each_step(self._step_begins)
        self.loaders.install()
        self._backward = torch.autograd.backward
        torch.autograd.backward = self._wrap_backward(self._backward)
        before, after = self._optimizer_hooks()
        optimizers = import_module("torch.optim.optimizer")  # torch.optim hides the name
        self._optimizer = optimizers.Optimizer
        self._made = self._optimizer.__init__
        self._optimizer.__init__ = self._wrap_made(self._made)
        self._handles = [
            optimizers.register_optimizer_step_pre_hook(before),
            optimizers.register_optimizer_step_post_hook(after),
        ]
        hook.tracker.on_iterator, hook.tracker.on_unused = self._iterator_begins, self.forwards.discover
        self.forwards.watch_compile()
        self.forwards.discover()
        self._add_windows()
        self._cuda.install()
        when_loaded("torch._dynamo", self._dynamo_loaded)

    def _add_windows(self) -> None:
        """The collectors that are turned on and off at step boundaries."""
        hook = self._hook
        if hook.collectors:
            return
        self._detailed = detailed = DetailedWindow(hook, self._torch, self.forwards)
        hook.collectors[DETAILED] = detailed
        hook.after_close.append(detailed.wait)
        hook.on_broke.append(detailed.drop)
        hook.on_fork.append(detailed.forget)
        with hook.guarded(HOROVOD):
            add_horovod_window(hook)
        hook.on_profile.append(self._add_python)
        self._add_python(before_loop=True)

    def _add_python(self, *, before_loop: bool = False) -> None:
        """The Python window, when the configuration asks for it: at the start, or while the job runs."""
        hook = self._hook
        config = hook.profile.collectors.get(PYTHON)
        if config is None or PYTHON in hook.collectors:
            return
        reason = why_not(config)
        if reason is not None:
            hook.notes[PYTHON] = f"unavailable: {reason}"
            hook.guard.warn(f"the Python window is left out: {reason}")
            return
        hook.notes.pop(PYTHON, None)
        hook.collectors[PYTHON] = add_python_window(hook, config, before_loop=before_loop)

    def _dynamo_loaded(self) -> None:
        """Keep torch.compile away from our wrappers, and the wrappers out of its guards."""
        try:
            frames = import_module("torch._dynamo.eval_frame")
            for code in own_code():
                frames.skip_code(code)
            self.forwards.watch_wrappers(frames.OptimizedModule)
            handler = import_module("torch._dynamo.callback").callback_handler
            handler.register_start_callback(self._compiling)
            self._compilations, clear = handler, handler.clear

            @functools.wraps(clear)
            def clear_but_ours() -> None:  # torch._dynamo.reset() calls it
                try:
                    clear()
                finally:
                    if self._compiling not in handler.start_callbacks:
                        handler.register_start_callback(self._compiling)

            handler.clear = clear_but_ours
        except (ImportError, AttributeError) as error:
            self._hook.notes["compile"] = f"older torch, models may be compiled once more: {error}"
        except Exception as error:  # noqa: BLE001 - fail open
            self._hook.broke(error)

    def _compiling(self, *_: Any) -> None:
        try:
            if not self._hook.quiet:
                self._hook.tracker.compiles = True
                self.forwards.compiling()
        except Exception as error:  # noqa: BLE001 - fail open
            self._hook.broke(error)

    def remove(self) -> None:
        """Leave torch as it was."""
        handler, self._compilations = self._compilations, None
        if handler is not None:
            handler.__dict__.pop("clear", None)
            with contextlib.suppress(ValueError):
                handler.remove_start_callback(self._compiling)
        self._hook.tracker.on_iterator = self._hook.tracker.on_unused = None
        self.forwards.remove()
        self.loaders.remove()
        self._cuda.stop()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._backward is not None:
            self._torch.autograd.backward = self._backward
            self._backward = None
        if self._made is not None:
            self._optimizer.__init__ = self._made
            self._made = None
        self._hook.no_longer(self._step_begins)

    def _rank(self) -> int | None:
        from sm_profiler.hook.settings import rank_from  # noqa: PLC0415 - once a process

        rank = rank_from()
        if rank is None and self._torch.distributed.is_available() and self._torch.distributed.is_initialized():
            return int(self._torch.distributed.get_rank())
        return rank

    def _step_begins(self, mode: ModeKeys) -> bool:
        if mode not in self._known_modes:
            if self._known_modes:
                self.forwards.discover()
            self._known_modes.add(mode)
        if self.forwards.discovering:
            self.forwards.step_begins()
        detailed = self._detailed
        if detailed is not None and detailed.profiler is not None:
            detailed.step_begins(self._hook.tracker.number)
            return False
        return not self.forwards.discovering

    def _wrap_backward(self, original: Any) -> Any:
        hook, tracker, forwards = self._hook, self._hook.tracker, self.forwards
        is_compiling, get_ident = compiling_check(self._torch), threading.get_ident

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or hook.quiet or get_ident() != forwards.thread:
                return original(*args, **kwargs)
            try:
                tracker.backward_begins(perf_counter_ns())
            except Exception as error:  # noqa: BLE001 - fail open
                hook.broke(error)
            try:
                return original(*args, **kwargs)
            finally:
                end_ns = perf_counter_ns()
                try:
                    tracker.backward_ends(end_ns)
                    if tracker.metering:
                        tracker.own_ns += min(perf_counter_ns() - end_ns, METER_MOST_NS)
                except Exception as error:  # noqa: BLE001 - fail open
                    tracker.in_backward = 0
                    hook.broke(error)

        return backward

    def _optimizer_hooks(self) -> tuple[Any, Any]:  # noqa: C901 - flat on purpose: every call costs the training time
        hook, tracker, forwards, passed = self._hook, self._hook.tracker, self.forwards, self._optimizer_passed
        is_compiling, get_ident = compiling_check(self._torch), threading.get_ident
        known = self._known_optimizers

        def before(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if is_compiling():
                return
            start_ns = perf_counter_ns()
            try:
                if hook.quiet:
                    return
                forwards.thread = get_ident()  # who updates the parameters is who trains
                tracker.optimizer_begins(id(optimizer), start_ns, type(optimizer).__name__)
                if tracker.metering:
                    tracker.own_ns += min(perf_counter_ns() - start_ns, METER_MOST_NS)
            except Exception as error:  # noqa: BLE001 - fail open
                hook.broke(error)

        def after(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if is_compiling():
                return
            end_ns = perf_counter_ns()
            try:
                if hook.quiet:
                    return
                key = id(optimizer)
                tracker.optimizer_ends(key, type(optimizer).__name__, end_ns)
                if forwards.discovering or key not in known:
                    passed(key)
                if tracker.metering:
                    tracker.own_ns += min(perf_counter_ns() - end_ns, METER_MOST_NS)
            except Exception as error:  # noqa: BLE001 - fail open
                hook.broke(error)

        return before, after

    def _iterator_begins(self, now_ns: int) -> None:
        """A new iterator may feed a model that is not known: what DDP wraps, an average of the weights, a teacher."""
        self._iterators += 1
        if self._iterators <= FIRST_ITERATORS or now_ns - self._looked_ns > LOOK_EVERY_NS:
            self._looked_ns = now_ns
            self.forwards.discover()

    def _wrap_made(self, original: Any) -> Any:
        """A new optimizer is the sign of a new model: without this its first forwards would not be seen."""
        hook, forwards, known = self._hook, self.forwards, self._known_optimizers

        @functools.wraps(original)
        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it takes the place of a method of this name
            original(optimizer, *args, **kwargs)
            try:
                known.discard(id(optimizer))  # of one that is gone
                if not hook.quiet:
                    forwards.adopt() if forwards.compiled else forwards.discover()
            except Exception as error:  # noqa: BLE001 - fail open
                hook.broke(error)

        return __init__

    def _optimizer_passed(self, key: int) -> None:
        """The models are known after the first optimizer step; an unknown optimizer may come with unknown models."""
        if key not in self._known_optimizers:
            self._known_optimizers.add(key)
            if len(self._known_optimizers) > 1:
                self.forwards.discover()
                return
        if self.forwards.discovering:
            self.forwards.settle()
