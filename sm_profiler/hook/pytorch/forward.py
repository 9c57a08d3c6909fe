"""Outermost forwards: models are discovered by a temporary global module hook, then traced by hooks of their own."""

from __future__ import annotations

import contextlib
import functools
import gc
import re
import sys
import threading
import warnings
import weakref
from collections import OrderedDict, deque
from itertools import islice
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from sm_profiler.formats.recorded import EvalMode, TrainMode
from sm_profiler.hook.adapter import Collector
from sm_profiler.hook.guard import pass_on
from sm_profiler.hook.modes import ModeKeys
from sm_profiler.hook.pytorch.data_parallel import Synchronizations
from sm_profiler.hook.steps import METER_MAX_NS, NEVER

if TYPE_CHECKING:
    from collections.abc import Callable, ValuesView
    from types import FrameType

    from sm_profiler.hook.session import Session

GLOBAL_HOOK_WARNING = re.compile(r"Using `torch.compile\(module\)` when there are global hooks")
# Attributes in which wrappers (torch.compile, DDP, FSDP, Fabric) hold a model.
WRAPPED = (
    "_orig_mod",
    "_original_module",
    "module",
    "_fsdp_wrapped_module",
    "_checkpoint_wrapped_module",
    "_forward_module",
)
FEW_PARAMETERS = 2  # of a model; an update changes them all
ENTRIES = 9  # measurements of which the middle one counts
MANY_MODELS = 16  # whose hooks are not switched off and on again
DISCOVERY_STEPS = 8  # enough for a loop without an optimizer to run all its models


class PrivateHooks(OrderedDict[int, Any]):
    """Hooks of a module, of which some are private: copies and pickles of the model do not contain them.

    Calls of the module use `items()`, which has all hooks; TorchScript compiles those in `values()`.

    Attributes:
        private: ids of the private hooks.
    """

    private: tuple[int, ...] = ()

    def __reduce__(self) -> Any:
        return (OrderedDict, (), None, None, iter([pair for pair in self.items() if pair[0] not in self.private]))

    def __deepcopy__(self, memo: dict[int, Any]) -> OrderedDict[int, Any]:
        from copy import deepcopy  # needed only when a model is copied

        return OrderedDict(
            (deepcopy(key, memo), deepcopy(value, memo)) for key, value in self.items() if key not in self.private
        )

    def values(self) -> ValuesView[Any]:  # type: ignore[override]  # a view of a filtered copy
        """Return the hooks that are not private."""
        return OrderedDict((key, value) for key, value in self.items() if key not in self.private).values()


class HookTable:
    """A table of a model that holds a private hook only, and can be exchanged for an empty one.

    It is exchanged and not changed: another thread may be reading it.
    """

    def __init__(self, module: Any, name: str, hooks: PrivateHooks) -> None:
        self.module = weakref.ref(module)
        self._name = name
        self._hooks, self._empty = hooks, PrivateHooks()

    def hide(self) -> None:
        """Put the empty table in place, unless the script has added hooks of its own."""
        module = self.module()
        if module is not None and len(self._hooks) == 1 and module.__dict__.get(self._name) is self._hooks:
            module.__dict__[self._name] = self._empty

    def show(self) -> None:
        """Put the table back; hooks that the script has added to the empty one keep it, since their handles refer to it."""
        module = self.module()
        if module is None or module.__dict__.get(self._name) is not self._empty:
            return
        if self._empty:
            self._empty.update(self._hooks)
            self._empty.private = self._hooks.private
            self._hooks, self._empty = self._empty, PrivateHooks()
        else:
            module.__dict__[self._name] = self._hooks

    def clear(self) -> None:
        """Remove the private hook."""
        for number in self._hooks.private:
            self._hooks.pop(number, None)


class ShyHook:
    """A hook among a user's own; copies and pickles of the model contain a no-op in its place."""

    def __init__(self, hook: Callable[..., Any]) -> None:
        self._hook = hook

    def __call__(self, *args: Any) -> None:
        """Call the hook."""
        self._hook(*args)

    def __reduce__(self) -> Any:
        return (getattr, (contextlib.nullcontext(), "__exit__"))

    def __deepcopy__(self, _memo: dict[int, Any]) -> Any:
        return contextlib.nullcontext().__exit__


TABLES = "_forward_pre_hooks", "_forward_hooks", "_forward_hooks_always_called"  # of a module


def _make_private(module: Any, table: str) -> bool:
    """Prepare a module's table for a private hook: replace an empty table by `PrivateHooks`, and return whether it is that.

    A table with hooks of the user is not replaced, since their handles refer to it.
    """
    hooks = module.__dict__.get(table)
    if type(hooks) is OrderedDict and not hooks:
        module.__dict__[table] = PrivateHooks()
        return True
    return isinstance(hooks, PrivateHooks)


def add_hooks(module: Any, base: Any, before: Callable[..., None], after: Callable[..., None]) -> list[Any]:
    """Add hooks to a module that no copy of it has, and return their handles.

    Args:
        module: the module.
        base: `torch.nn.Module`, whose functions add them: a class may have functions of these names for other purposes,
            and TorchScript's modules refuse hooks, which they would have to save.
        before: runs before each forward.
        after: runs after each forward, also if it failed, unless the script has hooks for this case.
    """
    private = [_make_private(module, table) for table in TABLES]
    handles = [base.register_forward_pre_hook(module, before if private[0] else ShyHook(before))]
    try:
        hook = after if private[1] else ShyHook(after)
        handles.append(base.register_forward_hook(module, hook, always_call=private[2]))
    except BaseException:
        handles[0].remove()
        raise
    for table, handle in zip(TABLES, (*handles, handles[1]), strict=True):
        hooks = module.__dict__.get(table)
        if isinstance(hooks, PrivateHooks):
            hooks.private = (*hooks.private, handle.id)
    return handles


class Forwards(Collector):
    """Reports the begin and end of outermost forwards to the tracker.

    Attributes:
        thread: id of the training thread.
        relayed: threads train in turn, such as a new one for each step; each waits for the other.
        discovering: handles of the global hook, while models are being discovered.
        entry_ns: what PyTorch takes for a call with hooks, besides the hooks.
        metered: the latest step in which that was measured.
        compiled: number of compilations that torch started.
    """

    name = "models"

    def __init__(self, session: Session, torch: Any) -> None:
        self._session = session
        self._torch = torch
        self._module = torch.nn.modules.module
        self.thread = threading.main_thread().ident
        self._trainer = threading.main_thread()
        self.relayed = self._handed_on = False
        self._names: dict[int, str] = {}
        self._seen: dict[int, weakref.ref[Any]] = {}  # models that have our hooks
        self._found: dict[int, weakref.ref[Any]] = {}  # models found since discovery was switched on
        self.discovering: list[Any] = []
        self._modes: set[ModeKeys] = set()
        self._instance_handles: list[Any] = []
        self._tables: list[HookTable] = []
        self.metered = -1
        self.entry_ns = 0
        self._entries: deque[int] = deque(maxlen=ENTRIES)
        self._bare, self._hooked = _idle_modules(torch)
        self._filter: Any = None
        self._steps = 0
        self._updates: dict[int, list[tuple[int, int]]] = {}  # parameters of a module, and their versions
        self.compiled = 0
        self.synchronizations = Synchronizations(session.tracker)
        self.before, self.after = self._make_hooks()
        self._compile: Any = None  # torch's own Module.compile
        self._eval: Any = None  # and Module.eval
        self._train: Any = None  # and Module.train, once a model was switched to eval() mode
        self._evaluated: weakref.ref[Any] | None = None  # that model, until it is switched back
        self.symbolic: type | None = None  # of inputs without values: a model is under construction
        self.constructing: Callable[[], bool] | None = None  # whether it is, also for the layers that it calls
        self._wrapper: Any = None  # class that torch.compile(model) returns, and its constructor
        self._in_place: list[weakref.ref[Any]] = []
        self._codes = {self._module.Module._call_impl.__code__}  # the frame of a module's call

    def _is_constructing(self, args: Any) -> bool:
        """Return whether a model is under construction that will call the module of this call."""
        if self.symbolic is not None and args and type(args[0]) is self.symbolic:
            return True
        return self.constructing is not None and self.constructing()

    # hooks

    def _make_hooks(self) -> tuple[Callable[..., None], Callable[..., None]]:  # flat on purpose: calls cost time
        session, tracker = self._session, self._session.tracker
        is_compiling, gradients = compiling_check(self._torch), self._torch.is_grad_enabled
        is_exporting = compiling_check(self._torch, exporting=True)
        get_ident, forwards, names, tensor = threading.get_ident, self, self._names, self._torch.Tensor

        def before(module: Any, args: Any) -> None:  # flat on purpose
            if is_exporting():
                return
            try:
                if tracker.rest is not None or tracker.in_backward or tracker.in_fetch or session.quiet:
                    return
                if get_ident() != forwards.thread and not forwards.takes_over(forwards.relayed and gradients()):
                    return
                if tracker.forward_key and not forwards.is_stale(tracker.forward_key):
                    return
                if forwards.symbolic is not None and forwards._is_constructing(args):
                    return
                start_ns = perf_counter_ns()
                if tracker.watches_updates:
                    forwards.watch_updates(module)
                training = gradients()
                tracker.forward_begins(id(module), start_ns, gradients=training)
                # reading the shape of an object that is no tensor may change it
                if training and tracker.number >= 0 and args and isinstance(args[0], tensor):
                    session.saw_input(args[0])
                if training and session.dtype is None:
                    session.dtype = forwards.dtype_of(module)
                if tracker.metering:
                    tracker.own_ns += min(perf_counter_ns() - start_ns, METER_MAX_NS)
                    if forwards.metered != tracker.global_step:
                        forwards.measure_entry(tracker.global_step)
                        forwards.synchronizations.read(module)
            except Exception as error:  # fail open
                forwards._fail(error)

        def after(module: Any, _args: Any, _output: Any) -> None:
            if is_compiling():
                return
            try:
                key = id(module)
                if tracker.forward_key == key and get_ident() == forwards.thread:
                    end_ns = perf_counter_ns()
                    tracker.forward_ends(names.get(key) or forwards.model_name(module), end_ns)
                    if tracker.metering:
                        tracker.own_ns += min(perf_counter_ns() - end_ns, METER_MAX_NS) + forwards.entry_ns
            except Exception as error:  # fail open
                forwards._fail(error)

        return before, after

    # steps whose phases are not recorded

    @property
    def may_hide(self) -> bool:
        """True if the hooks can be taken off the models; compiled ones would be compiled once more."""
        return not (self.compiled or self.discovering or self.relayed) and len(self._tables) <= MANY_MODELS

    def hide(self) -> None:
        """Take the hooks off the models: PyTorch calls a module without hooks on a shorter path."""
        for table in self._tables:
            table.hide()

    def show(self) -> None:
        """Give the models their hooks back."""
        for table in self._tables:
            table.show()

    def is_call(self, frame: FrameType) -> bool:
        """Return whether a frame is that of a call of a traced model."""
        return frame.f_code in self._codes and id(frame.f_locals.get("self")) in self._seen

    def measure_entry(self, step: int) -> None:
        """Measure `entry_ns`, with modules that do nothing."""
        self.metered = step
        # calls that are traced, or seen by hooks for all modules, would not be ours alone
        if self._torch._C._get_tracing_state() is not None or self._module._has_any_global_hook():
            return
        times = []
        for module in (self._hooked, self._hooked, self._bare, self._bare):  # the first call of each loads the caches
            times.append(perf_counter_ns())
            module._call_impl(None)  # what a call runs; tools replace __call__
        self._entries.append(2 * times[2] - times[1] - times[3])
        self.entry_ns = max(sorted(self._entries)[len(self._entries) // 2], 0)

    def train_here(self) -> None:
        """Note that this thread trains."""
        self.thread, self._trainer = threading.get_ident(), threading.current_thread()

    def takes_over(self, asked: bool) -> bool:  # called by position, at every event of other threads
        """Return whether this thread takes over training: the previous thread exited, or passes batches on."""
        if asked or not self._trainer.is_alive():
            self.relayed = self._handed_on = True
            self.train_here()
            return True
        return False

    def updates_again(self) -> None:
        """Note an optimizer's step on the training thread: without a change of threads before it, they take no turns."""
        self.relayed, self._handed_on = self._handed_on, False

    def watch_updates(self, module: Any) -> None:
        """Note whether parameters have changed since this module's last forward: written in place, or replaced."""
        key = id(module)
        try:
            few = islice(self._module.Module.parameters(module), FEW_PARAMETERS)
            state = [(id(one), one._version) for one in few]  # torch has no public name for it
        except Exception as error:  # parameters that were made for inference have no versions
            pass_on(error)
            state = []
        self._session.tracker.updated = self._updates.get(key, state) != state
        self._updates[key] = state

    def dtype_of(self, module: Any) -> str:
        """Return the type of a module's first parameter, `torch.float32`; "" if it has none."""
        return next((str(one.dtype) for one in self._module.Module.parameters(module)), "")

    def model_name(self, module: Any) -> str:
        """Return the class name of the model inside its wrappers."""
        name = self._names.get(id(module))
        if name is None:
            inner = module
            while (wrapped := _wrapped(inner)) is not None:
                inner = wrapped
            name = self._names[id(module)] = _class_name(inner)
        return name

    def is_stale(self, key: int) -> bool:
        """Return whether the running forward was left by an exception that hooks do not report (Ctrl-C)."""
        walker: Any = sys._getframe(2)  # only the stack shows it
        while walker is not None:
            if walker.f_code in self._codes and id(walker.f_locals.get("self")) == key:
                return False
            walker = walker.f_back
        self._session.tracker.forward_key = 0
        return True

    # models compiled in place

    def watch_compile(self) -> None:
        """Wrap `model.compile()`: calls of such a model bypass every hook that dynamo does not trace into the graph."""
        compile_module = getattr(self._module.Module, "compile", None)
        if compile_module is None:
            return
        session, forwards = self._session, self

        @functools.wraps(compile_module)
        def compile(self: Any, *args: Any, **kwargs: Any) -> Any:  # replaces a method of this name
            result = compile_module(self, *args, **kwargs)
            try:
                if not session.quiet and forwards._has_parameters(self):
                    forwards._wrap_calls(self)
            except Exception as error:  # fail open
                forwards._fail(error)
            return result

        self._compile = compile_module
        self._module.Module.compile = compile

    def watch_evaluations(self) -> None:
        """Wrap `model.eval()`: an evaluation without a loader consists of forwards, which are not reported during a rest.

        It distinguishes an evaluation at each step from the forwards of a teacher, or of a model that acts, and it is all
        that is seen of an evaluation that calls other methods of the model than its forward.
        """
        switch, forwards, session = self._module.Module.eval, self, self._session

        @functools.wraps(switch)
        def evaluates(self: Any) -> Any:  # replaces a method, whose argument may be given by its name
            tracker, began_ns, switches = session.tracker, perf_counter_ns(), False
            if threading.get_ident() == forwards.thread:
                try:
                    switches = tracker.global_step >= 0 and self.training
                    tracker.evaluation_begins(began_ns, switches=switches)
                except Exception as error:  # fail open
                    session.guard.failed("hook", error)
            result = switch(self)
            if switches:
                try:
                    tracker.append(EvalMode().span(forwards.model_name(self), began_ns, perf_counter_ns()))
                    forwards._evaluated = weakref.ref(self)
                    forwards._watch_train()
                except Exception as error:  # fail open
                    session.guard.failed("hook", error)
            return result

        self._eval = switch, evaluates
        self._module.Module.eval = evaluates

    def _watch_train(self) -> None:
        """Wrap `model.train()`, which ends an evaluation, in scripts that switch a model in their loop."""
        if self._train is not None:
            return
        switch, forwards, session = self._module.Module.train, self, self._session

        @functools.wraps(switch)
        def train(self: Any, mode: bool = True) -> Any:  # flat on purpose: runs for each layer
            evaluated = forwards._evaluated
            if evaluated is not None and mode and evaluated() is self and threading.get_ident() == forwards.thread:
                try:
                    now_ns, tracker = perf_counter_ns(), session.tracker
                    forwards._evaluated = None
                    tracker.evaluation_ends(now_ns)
                    tracker.append(TrainMode().span(forwards.model_name(self), now_ns, now_ns))
                except Exception as error:  # fail open
                    session.guard.failed("hook", error)
            return switch(self, mode)

        self._train = switch, train
        self._module.Module.train = train

    def _restore_eval(self) -> None:
        """Restore `eval()` and `train()`, unless they were replaced since."""
        for name, wrapped in (("eval", self._eval), ("train", self._train)):
            if wrapped is not None and getattr(self._module.Module, name) is wrapped[1]:
                setattr(self._module.Module, name, wrapped[0])
        self._eval = self._train = self._evaluated = None
        self._session.tracker.evaluates_after = NEVER

    def watch_wrappers(self, wrapper: Any) -> None:
        """Trace what `torch.compile(model)` returns from its first call on; discovery ends with the first compilation."""
        original, session, forwards = wrapper.__init__, self._session, self

        @functools.wraps(original)
        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # replaces a method of this name
            original(self, *args, **kwargs)
            try:
                if not session.quiet and forwards._has_parameters(self):
                    forwards._watch(self)
            except Exception as error:  # fail open
                forwards._fail(error)

        wrapper.__init__ = __init__
        self._wrapper = (wrapper, original)

    def _wrap_calls(self, module: Any) -> None:
        before, after, is_compiling = self.before, self.after, compiling_check(self._torch)
        original, attribute = module._compiled_call_impl, "_compiled_call_impl"  # the attribute that torch calls

        def traced(self: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(*args, **kwargs)
            before(self, args)
            try:
                return original(*args, **kwargs)
            finally:
                after(self, args, None)

        self._codes.add(traced.__code__)
        module.__dict__[attribute] = functools.wraps(original)(functools.partial(traced, module))
        self._in_place.append(weakref.ref(module))

    # discovery

    def _has_parameters(self, module: Any) -> bool:
        try:  # a class may have a function of the same name for other purposes
            return next(self._module.Module.parameters(module), None) is not None
        except Exception as error:  # a module that is not initialised (yet) does not train
            pass_on(error)
            return False

    def discover(self) -> None:
        """Trace every module until the next optimizer step, or for a few steps; never after the first compilation."""
        self._steps = 0
        if self.discovering or self.compiled or self._session.quiet or self._session.is_off(self.name):
            return
        self._session.tracker.end_rest()
        is_compiling, tracker = compiling_check(self._torch), self._session.tracker
        before, after, found, seen = self.before, self.after, self._found, self._seen
        has_parameters = self._has_parameters

        def any_before(module: Any, args: Any) -> None:
            if is_compiling():
                return
            key = id(module)
            if tracker.forward_key or key in seen:  # inside another module, or traced already
                return
            if tracker.in_backward or tracker.in_fetch:  # run again for its gradients, or by a data set
                return
            try:
                if self._is_constructing(args):  # the layers of a model, which runs them later
                    return
                if key not in found:
                    if not has_parameters(module):
                        return
                    found[key] = weakref.ref(module, lambda _: found.pop(key, None))
            except Exception as error:  # fail open
                self._fail(error)
                return
            before(module, args)

        def any_after(module: Any, args: Any, output: Any) -> None:
            if is_compiling():
                return
            if tracker.forward_key == id(module) and id(module) in found:
                after(module, args, output)

        self._filter_warning()
        self._session.wake()
        self.discovering = [
            self._module.register_module_forward_pre_hook(any_before),
            self._module.register_module_forward_hook(any_after, always_call=True),
        ]

    def models(self) -> list[Any]:
        """Return the outermost models discovered so far."""
        known = [reference() for reference in [*self._seen.values(), *self._found.values()]]
        return [model for model in known if model is not None]

    def step_begins(self, step: int, mode: ModeKeys) -> bool:  # the life cycle's
        """Discover models when a new mode begins; end discovery after a few steps in a loop without an optimizer."""
        if mode not in self._modes:
            if self._modes:
                self.discover()
            self._modes.add(mode)
        if self.discovering:
            self._steps += 1
            if self._steps > DISCOVERY_STEPS and not self._session.tracker.forward_key:
                self.settle()
        return not self.discovering

    def settle(self, *, inside: bool = False) -> None:
        """End discovery and give the discovered models hooks of their own; not during a forward, unless `inside` is set."""
        if not self.discovering or (self._session.tracker.forward_key and not inside):
            return
        for handle in self.discovering:
            handle.remove()
        self.discovering = []
        self._restore_warning()
        for key, reference in list(self._found.items()):
            if key not in self._seen and (module := reference()) is not None:
                try:
                    self._watch(module)
                except Exception as error:  # fail open
                    self._fail(error)
                    break
        self._found.clear()

    def compiling(self) -> None:
        """End discovery before a compilation: removing the global hook later would compile everything again."""
        self.compiled += 1
        self._session.tracker.end_rest()
        self._restore_eval()
        self.settle(inside=True)
        if self.compiled == 1:
            self.adopt()

    def adopt(self) -> None:
        """Trace all existing models, since discovery is impossible after the first compilation.

        Hooks that exist before a model is compiled vanish in its graph; later ones would compile it once more.
        """
        kind, known = self._module.Module, self._seen
        modules = [one for one in gc.get_objects() if issubclass(type(one), kind) and _is_complete(one)]
        inside = {id(child) for one in modules for child in one._modules.values()}  # torch's own table
        for module in modules:
            outer = None if id(module) in inside else module
            while outer is not None:  # the model inside a wrapper may be called directly
                if id(outer) not in known and self._has_parameters(outer):
                    self._watch(outer)
                outer = _wrapped(outer)

    def _fail(self, error: Exception) -> None:
        """Go on without forwards after an internal error; without anything if the hooks must stay on compiled models."""
        if self.compiled:
            self._session.fail(error)
        else:
            self._session.switch_off(self, error)

    def failed(self) -> None:
        """Remove all hooks, unless that would compile models once more."""
        if not self.compiled:
            self.remove()

    def remove(self) -> None:
        """Remove all hooks."""
        self._session.tracker.end_rest()
        for table in self._tables:
            table.clear()
        self._tables.clear()
        for handle in [*self.discovering, *self._instance_handles]:
            handle.remove()
        self.discovering, self._instance_handles = [], []
        self._found.clear()
        self._seen.clear()
        self._restore_warning()
        self._restore_eval()
        if self._compile is not None:
            self._module.Module.compile, self._compile = self._compile, None
        if self._wrapper is not None:
            self._wrapper[0].__init__, self._wrapper = self._wrapper[1], None
        for reference in self._in_place:
            call = getattr(reference(), "_compiled_call_impl", None)
            if isinstance(call, functools.partial) and getattr(call.func, "__code__", None) in self._codes:
                reference().__dict__["_compiled_call_impl"] = vars(call)["__wrapped__"]
        self._in_place.clear()

    def _watch(self, module: Any) -> None:
        key = id(module)
        self._instance_handles.extend(add_hooks(module, self._module.Module, self.before, self.after))
        for table in TABLES[:2]:
            hooks = module.__dict__.get(table)
            if isinstance(hooks, PrivateHooks):
                self._tables.append(HookTable(module, table, hooks))
        seen, names = self._seen, self._names

        def forget(_: Any) -> None:
            seen.pop(key, None)
            names.pop(key, None)
            self._tables = [table for table in self._tables if table.module() is not None]

        seen[key] = weakref.ref(module, forget)

    def _filter_warning(self) -> None:
        """Suppress PyTorch's warning about global hooks beside compiled modules: ours do not fire twice."""
        # Not by filterwarnings(): it resets which warnings were shown already, and Python would show them again.
        self._filter = ("ignore", GLOBAL_HOOK_WARNING, Warning, None, 0)
        filters: Any = warnings.filters
        filters.insert(0, self._filter)

    def _restore_warning(self) -> None:
        if self._filter is not None:
            with contextlib.suppress(ValueError):
                filters: Any = warnings.filters
                filters.remove(self._filter)
            self._filter = None


def _idle_modules(torch: Any) -> tuple[Any, Any]:
    """Return two modules that do nothing; the second has hooks that do nothing."""
    bare, hooked = torch.nn.Identity(), torch.nn.Identity()
    hooked.register_forward_pre_hook(lambda _module, _args: None)
    hooked.register_forward_hook(lambda _module, _args, _output: None, always_call=True)
    return bare, hooked


def _is_complete(module: Any) -> bool:
    """Return whether a module is complete, and no graph created by dynamo or TorchScript."""
    made = any(kind.__name__ in {"GraphModule", "ScriptModule"} for kind in type(module).__mro__)
    return "_modules" in module.__dict__ and not made


def _wrapped(module: Any) -> Any:
    """Return the model inside a wrapper (torch.compile, DistributedDataParallel), a module whose only child is the model."""
    inside = module._modules  # torch's own table; attribute access may be overridden
    names = list(inside.keys()) if inside else []  # TorchScript's table can be neither iterated nor tested for names
    return inside[names[0]] if len(names) == 1 and names[0] in WRAPPED else None


def _class_name(module: Any) -> str:
    """Return the class name given by its author: `fully_shard` derives a class."""
    classes = (kind for kind in type(module).__mro__ if not kind.__module__.startswith("torch.distributed."))
    return next(classes).__name__


def compiling_check(torch: Any, *, exporting: bool = False) -> Callable[[], bool]:
    """Return `torch.compiler.is_dynamo_compiling`, or its predecessor before 2.3; it runs seven times a step.

    Args:
        torch: the module.
        exporting: detect `torch.export` too, which runs a module's hooks; this check takes three times as long.
    """
    name = "is_compiling" if exporting else "is_dynamo_compiling"
    check: Callable[[], bool] | None = getattr(torch.compiler, name, None)
    if check is None:
        from torch._dynamo.external_utils import is_compiling  # old versions only

        return is_compiling
    return check
