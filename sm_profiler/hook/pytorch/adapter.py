"""The adapter for PyTorch: patches torch so that its work reaches the tracker, and restores it."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
from collections import OrderedDict
from importlib import import_module
from time import perf_counter_ns
from types import CodeType
from typing import TYPE_CHECKING, Any, SupportsIndex

import torch

from sm_profiler import threads
from sm_profiler.hook.adapter import Collector, FrameworkAdapter
from sm_profiler.hook.detailed import DETAILED, DetailedWindow
from sm_profiler.hook.frames import stack_of
from sm_profiler.hook.guard import at_thread_end
from sm_profiler.hook.patches import when_loaded
from sm_profiler.hook.pytorch.cuda import Allocator, CudaCollector
from sm_profiler.hook.pytorch.detailed import ScriptProfilers, TorchProfiler
from sm_profiler.hook.pytorch.forward import Forwards, compiling_check
from sm_profiler.hook.pytorch.graphs import Compilations, OperatorCount
from sm_profiler.hook.pytorch.loader import DATALOADER, DataLoaderCollector
from sm_profiler.hook.rest import REST_NS
from sm_profiler.hook.steps import METER_MAX_NS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from sm_profiler.hook.rest import Rest
    from sm_profiler.hook.session import Session

FIRST_ITERATORS = 8  # of a loader, at whose start models are discovered; later ones at most once per interval
DISCOVERY_INTERVAL_NS = 1_000_000_000
FRAMES = 4  # of Python and C for a call of a module without hooks; with them, torch adds one
OWN_FRAMES = 50  # for what a hook calls itself
OTHERS = 4  # steps of other optimizers in a row after which a rest ends


def own_code() -> Iterator[CodeType]:
    """Yield all code of the profiler that may run on the training thread, nested functions included."""
    for module in [module for name, module in sys.modules.items() if name.startswith("sm_profiler.")]:
        for thing in list(vars(module).values()):
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


_nothing = memoryview(b"").__exit__  # in the place of an optimizer's hook: a function of C that takes anything


def _is_joining() -> bool:
    """Return whether the main thread waits in torch.distributed.init_process_group."""
    stack = stack_of(threading.main_thread().ident)
    return any(frame.f_code.co_name == "init_process_group" for frame in stack)


class Recursion:
    """Raises the recursion limit: torch adds a frame to each module's call while hooks are registered."""

    def __init__(self) -> None:
        self._before = self._ours = 0

    def install(self) -> None:
        """Raise the limit."""
        self._before = sys.getrecursionlimit()
        self._ours = self._before + self._before // FRAMES + OWN_FRAMES
        sys.setrecursionlimit(self._ours)

    def remove(self) -> None:
        """Restore the limit, unless the script has set another one."""
        if self._ours and sys.getrecursionlimit() == self._ours:
            sys.setrecursionlimit(self._before)
        self._ours = 0


class Hooks(OrderedDict[int, Any]):
    """Torch's table of hooks of all optimizers, pickled without ours.

    cloudpickle pickles a class of `__main__` by value, with the globals that its functions use: `step`, as torch wraps
    it, uses these tables.

    Attributes:
        own: keys of our hooks.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.own: set[int] = set()

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        others = [(key, hook) for key, hook in self.items() if key not in self.own]
        return OrderedDict(others).__reduce_ex__(protocol)


def _replace_tables(optimizers: Any) -> None:
    """Replace torch's tables permanently: the handles of the script's hooks refer to them."""
    for name in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
        table = getattr(optimizers, name, None)
        if type(table) is OrderedDict and not table:
            setattr(optimizers, name, Hooks())


class PyTorchAdapter(FrameworkAdapter):
    """Installs forward hooks, optimizer hooks and wrappers into torch."""

    framework = "pytorch"
    collectors = frozenset({DATALOADER, DETAILED})

    def __init__(self, session: Session) -> None:
        self.session = session
        self._known_optimizers: set[int] = set()
        self._handles: list[Any] = []
        self._hooks: tuple[Any, Any] = (None, None)
        self._phases: dict[CodeType, str] = {}  # code of torch → phase that it runs in
        self._backward: Any = None
        self._wrapped_backward: Any = None
        self._optimizer: Any = None
        self._compilations: Any = None  # torch's callback handler
        self._iterators = 0
        self._discovered_ns = 0
        self._constructor: Any = None  # the optimizers' own
        self.forwards = Forwards(session, torch)
        self.loaders = DataLoaderCollector(session, torch, self.forwards)
        self.cuda = CudaCollector(session, torch, self.forwards.models)
        self._operators = OperatorCount(session, torch)
        self._profilers = ScriptProfilers(torch)
        self._detailed = DetailedWindow(session, TorchProfiler(session, torch, self.forwards, self._profilers))
        self._profilers.make_way = self._detailed.make_way
        self._compiled = Compilations(session.append, lambda: session.tracker.number)
        self._allocator = Allocator(session.append, torch)
        self._recursion = Recursion()

    def install(self) -> None:
        """Patch torch and add the collectors."""
        session = self.session
        self._profilers.watch()
        session.add(self.forwards)
        session.add(self.loaders)
        self.loaders.install()
        self._backward = torch.autograd.backward
        self._wrapped_backward = torch.autograd.backward = self._wrap_backward(self._backward)
        self._hooks = before, after = self._optimizer_hooks()
        optimizers: Any = import_module("torch.optim.optimizer")  # torch.optim hides the name
        self._optimizer = optimizers.Optimizer
        self._phases = {self._backward.__code__: "backward", self.loaders.fetching: "wait"}
        self._phases |= dict.fromkeys(_with_inner(self._optimizer.profile_hook_step.__code__), "optimizer")
        self._constructor = self._optimizer.__init__
        self._optimizer.__init__ = self._wrap_constructor(self._constructor)
        _replace_tables(optimizers)
        self._handles = [
            optimizers.register_optimizer_step_pre_hook(before),
            optimizers.register_optimizer_step_post_hook(after),
        ]
        for handle in self._handles:
            if isinstance(table := handle.hooks_dict_ref(), Hooks):
                table.own.add(handle.id)
        self._recursion.install()
        self.forwards.watch_compile()
        self.forwards.watch_evaluations()
        self.forwards.discover()
        session.add(self._operators)
        session.add(self._compiled)
        session.add(self._allocator)
        self.cuda.install()
        when_loaded("torch._dynamo", self._dynamo_loaded)

    def remove(self) -> None:
        """Restore torch and take the collectors out."""
        handler, self._compilations = self._compilations, None
        if handler is not None:
            handler.__dict__.pop("clear", None)
            with contextlib.suppress(ValueError):
                handler.remove_start_callback(self._compiling)
        self._profilers.remove()
        self._compiled.remove()
        self.forwards.remove()
        self._recursion.remove()
        self.loaders.remove()
        self.cuda.stop()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._backward is not None:
            torch.autograd.backward = self._backward
            self._backward = None
        if self._constructor is not None:
            self._optimizer.__init__ = self._constructor
            self._constructor = None
        own = (self._compiled, self._allocator)
        for collector in (self.forwards, self.loaders, self._detailed, self._operators, self.cuda, *own):
            self.session.discard(collector)

    def detailed(self) -> Collector:
        """Return the collector of torch.profiler's window."""
        return self._detailed

    def is_set_up(self) -> bool:
        """Return whether a model, an optimizer or a process group exists, or the group is being made."""
        tracker, distributed = self.session.tracker, torch.distributed
        if tracker.has_optimizer or self.forwards.models():
            return True
        return distributed.is_available() and (distributed.is_initialized() or _is_joining())

    def uses_gpu(self) -> bool:
        """Return whether torch has initialised CUDA, which its first tensor on a GPU does."""
        cuda: Any = torch.cuda
        return bool(cuda.is_initialized())

    def rank(self) -> int | None:
        """Return the rank in the initialised process group, or that set by the launcher.

        The group comes first: ranks that a script starts by itself all inherit the variables of its launcher.
        """
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return int(torch.distributed.get_rank())
        return super().rank()

    def training_thread(self) -> int | None:
        """Return the id of the thread that trains."""
        return self.forwards.thread

    def is_helper(self) -> bool:
        """Return whether this process is a DataLoader worker."""
        return torch.utils.data.get_worker_info() is not None

    def loader_began(self, now_ns: int) -> None:
        """Discover models: a new iterator may feed an unknown one (inside DDP, an average of the weights, a teacher)."""
        self._iterators += 1
        if self._iterators <= FIRST_ITERATORS or now_ns - self._discovered_ns > DISCOVERY_INTERVAL_NS:
            self._discovered_ns = now_ns
            self.forwards.discover()

    def batches_unused(self) -> None:
        """Discover models: an unknown one may consume the batches."""
        self.forwards.discover()

    # torch.compile

    def _dynamo_loaded(self) -> None:
        """Keep torch.compile from tracing the wrappers and from guarding on them."""
        try:
            frames: Any = import_module("torch._dynamo.eval_frame")
            for code in own_code():
                frames.skip_code(code)
            self.forwards.watch_wrappers(frames.OptimizedModule)
            handler = import_module("torch._dynamo.callback").callback_handler
            handler.register_start_callback(self._compiling)
            self._compiled.register(handler)
            self._compilations, clear = handler, handler.clear

            @functools.wraps(clear)
            def clear_and_register() -> None:  # torch._dynamo.reset() calls it
                try:
                    clear()
                finally:
                    if self._compiling not in handler.start_callbacks:
                        handler.register_start_callback(self._compiling)
                    self._compiled.register(handler)

            handler.clear = clear_and_register
        except (ImportError, AttributeError) as error:
            self.session.note("compile", f"older torch, models may be compiled once more: {error}")
        except Exception as error:  # fail open
            self.session.fail(error)

    def _compiling(self, *_: Any) -> None:
        try:
            if not self.session.quiet:
                self.session.tracker.compiles = True
                self.forwards.compiling()
        except Exception as error:  # fail open
            self.session.fail(error)

    # wrappers

    def _wrap_backward(self, original: Any) -> Any:
        session, tracker, forwards = self.session, self.session.tracker, self.forwards
        is_compiling, get_ident, operators = compiling_check(torch), threading.get_ident, self._operators

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if is_compiling() or session.quiet or tracker.rest is not None or get_ident() != forwards.thread:
                return original(*args, **kwargs)
            if tracker.global_step >= operators.due and not session.is_off(operators.name):
                session.run(operators, operators.backward_begins, args[0] if args else kwargs.get("tensors"))
            try:
                tracker.backward_begins(perf_counter_ns())
            except Exception as error:  # fail open
                session.fail(error)
            try:
                return original(*args, **kwargs)
            finally:
                end_ns = perf_counter_ns()
                try:
                    tracker.backward_ends(end_ns)
                    if tracker.metering:
                        tracker.own_ns += min(perf_counter_ns() - end_ns, METER_MAX_NS)
                except Exception as error:  # fail open
                    tracker.in_backward = 0
                    session.fail(error)

        return backward

    def _optimizer_hooks(self) -> tuple[Any, Any]:  # flat on purpose: every call costs the training time
        session, tracker, forwards = self.session, self.session.tracker, self.forwards
        stepped, known = self._optimizer_stepped, self._known_optimizers
        is_compiling, get_ident = compiling_check(torch), threading.get_ident

        def before(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if is_compiling():
                return
            start_ns = perf_counter_ns()
            try:
                if session.quiet:
                    return
                if forwards.thread != get_ident():  # the training thread is the one that updates parameters
                    self._train_on_this_thread()
                elif forwards.relayed:
                    forwards.updates_again()
                tracker.optimizer_begins(id(optimizer), start_ns, type(optimizer).__name__)
                if tracker.metering:
                    tracker.own_ns += min(perf_counter_ns() - start_ns, METER_MAX_NS)
            except Exception as error:  # fail open
                session.fail(error)

        def after(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if is_compiling():
                return
            end_ns = perf_counter_ns()
            try:
                if session.quiet:
                    return
                key = id(optimizer)
                tracker.optimizer_ends(key, type(optimizer).__name__, end_ns)
                if forwards.discovering or key not in known:
                    stepped(key)
                elif tracker.may_rest():
                    self._rest()
                if tracker.metering:
                    tracker.own_ns += min(perf_counter_ns() - end_ns, METER_MAX_NS) + forwards.entry_ns
            except Exception as error:  # fail open
                session.fail(error)

        return before, after

    def _wrap_constructor(self, original: Any) -> Any:
        """Discover models when an optimizer is created: the first forwards of its model would be missed otherwise."""
        session, forwards, known = self.session, self.forwards, self._known_optimizers
        train_here = self._train_on_this_thread

        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # replaces a method of this name
            original(self, *args, **kwargs)
            try:
                session.tracker.has_optimizer = True
                if session.tracker.global_step < 0 and forwards.thread != threading.get_ident():
                    train_here()  # from the first step on
                known.discard(id(self))  # of a deleted one
                if not session.quiet:
                    forwards.adopt() if forwards.compiled else forwards.discover()
            except Exception as error:  # fail open
                session.fail(error)

        return __init__

    # rest

    def _rest(self, *, again: bool = False) -> None:
        """Take all off the path of the steps whose phases are not recorded, except for what counts them.

        Args:
            again: the rest before has just ended, and all is off still; put back and taken off, the next step is slow.
        """
        due = self._operators.is_due(self.session.tracker.global_step + 1)
        if due or not (self.forwards.may_hide and self.loaders.is_done()):
            if again:
                self._awake()
            return
        try:
            if not again:
                self.forwards.hide()
                if torch.autograd.backward is self._wrapped_backward:
                    torch.autograd.backward = self._backward
            rest = self.session.tracker.begin_rest(self._awake, self._phase_of)
            self._set_hooks((_nothing, self._counting_hook(rest)))
        except BaseException:  # a signal's handler raised: half a rest would never end
            self._awake()
            raise

    def _awake(self) -> None:
        self._set_hooks(self._hooks)
        if torch.autograd.backward is self._backward:
            torch.autograd.backward = self._wrapped_backward
        self.forwards.show()

    def _set_hooks(self, hooks: tuple[Any, Any]) -> None:
        """Exchange the optimizers' hooks in place: another thread may be running them."""
        for handle, hook in zip(self._handles, hooks, strict=False):
            table = handle.hooks_dict_ref()
            if table is not None and handle.id in table:
                table[handle.id] = hook

    def _counting_hook(self, rest: Rest) -> Any:
        """Return the hook of a rest: each object that it touched would cost as much as the rest of it, even a closure's cell."""
        session, tracker = self.session, self.session.tracker
        others = before = 0  # steps of other optimizers in a row, and those of the rest before them

        def after(  # defaults are in one tuple
            optimizer: Any, _args: Any, _kwargs: Any, key: int = rest.optimizer, ends: list[int] = rest.ends,
            clock: Callable[[], int] = perf_counter_ns, last: int = rest.steps, until: int = perf_counter_ns() + REST_NS,
        ) -> None:  # fmt: skip
            if id(optimizer) == key:
                ends.append(now := clock())
                if len(ends) > last or now >= until:
                    ended(regular=True)
            else:  # an optimizer inside the other, or the loop goes on with another
                other(len(ends))

        def other(count: int) -> None:
            nonlocal others, before
            others, before = others + 1 if count == before else 1, count
            if others > OTHERS:
                ended(regular=False)

        def ended(*, regular: bool) -> None:
            try:
                if tracker.rest is not rest:  # its end was interrupted
                    self._awake()
                    return
                tracker.end_rest(regular=regular)
                if regular and tracker.may_rest():  # the time is over, and no phases are due
                    self._rest(again=True)
                elif regular:
                    self._awake()
            except Exception as error:  # fail open
                self._awake()
                session.fail(error)

        return after

    def _phase_of(self, stack: Sequence[FrameType]) -> str:
        for frame in stack:
            phase = self._phases.get(frame.f_code) or ("forward" if self.forwards.is_call(frame) else "")
            if phase:
                return phase
        return ""

    def _train_on_this_thread(self) -> None:
        self.forwards.train_here()
        self.forwards.relayed = True  # until the next update, which shows whether threads take turns
        if not threads.is_main():
            at_thread_end(self.session.training_thread_ends)

    def _optimizer_stepped(self, key: int) -> None:
        """End discovery after the first optimizer step; a further optimizer may belong to further models."""
        if key not in self._known_optimizers:
            self._known_optimizers.add(key)
            if len(self._known_optimizers) > 1:
                self.forwards.discover()
                return
        if self.forwards.discovering:
            self.forwards.settle()
