"""Outermost forwards: found by a global module hook while that is on, then seen by hooks on the models themselves."""

from __future__ import annotations

import contextlib
import functools
import gc
import re
import sys
import threading
import warnings
import weakref
from collections import OrderedDict
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from sm_profiler.hook.steps import METER_MOST_NS

if TYPE_CHECKING:
    from collections.abc import Callable, ValuesView

    from sm_profiler.hook.core import Hook

GLOBAL_HOOK_WARNING = re.compile(r"Using `torch.compile\(module\)` when there are global hooks")
# Names by which wrappers (torch.compile, DDP, FSDP, Fabric) hold a model.
WRAPPED = (
    "_orig_mod",
    "_original_module",
    "module",
    "_fsdp_wrapped_module",
    "_checkpoint_wrapped_module",
    "_forward_module",
)
DISCOVERY_STEPS = 8  # a loop without an optimizer has shown its models by then


class PrivateHooks(OrderedDict[int, Any]):
    """A module's hooks, with ours kept private: a copy or a pickle of the model knows nothing of them.

    Calls of the module go through `items()`, which has them all.  TorchScript compiles what `values()` has.
    """

    ours: tuple[int, ...] = ()

    def __reduce__(self) -> Any:
        return (OrderedDict, (), None, None, iter([pair for pair in self.items() if pair[0] not in self.ours]))

    def __deepcopy__(self, memo: dict[int, Any]) -> OrderedDict[int, Any]:
        from copy import deepcopy  # noqa: PLC0415 - only when a model is copied

        return OrderedDict(
            (deepcopy(key, memo), deepcopy(value, memo)) for key, value in self.items() if key not in self.ours
        )

    def values(self) -> ValuesView[Any]:  # type: ignore[override]  # a view of another dict is a view still
        """The user's own hooks."""
        return OrderedDict((key, value) for key, value in self.items() if key not in self.ours).values()


class ShyHook:
    """A hook among a user's own: in a copy or a pickle of the model a call that does nothing stands in its place."""

    def __init__(self, hook: Callable[..., Any]) -> None:
        self._hook = hook

    def __call__(self, *args: Any) -> None:
        """What torch calls."""
        self._hook(*args)

    def __reduce__(self) -> Any:
        return (getattr, (contextlib.nullcontext(), "__exit__"))

    def __deepcopy__(self, _memo: dict[int, Any]) -> Any:
        return contextlib.nullcontext().__exit__


def _private(module: Any, table: str, hook: Callable[..., None]) -> Callable[..., None]:
    """Make ready for a hook of ours: an empty table is replaced by one that keeps it private.

    A table with hooks of the user's stays the object that it is, since the handles they hold know it.
    """
    hooks = module.__dict__.get(table)
    if type(hooks) is OrderedDict and not hooks:
        module.__dict__[table] = PrivateHooks()
        return hook
    return hook if isinstance(hooks, PrivateHooks) else ShyHook(hook)


class Forwards:
    """Tells the tracker where outermost forwards begin and end."""

    def __init__(self, hook: Hook, torch: Any) -> None:
        self._hook = hook
        self._torch = torch
        self._module = torch.nn.modules.module
        self.thread = threading.main_thread().ident
        self._names: dict[int, str] = {}
        self._seen: dict[int, weakref.ref[Any]] = {}  # models that have hooks of ours
        self._found: dict[int, Any] = {}  # models found since discovery was switched on
        self.discovering: list[Any] = []  # handles of the global hook, while it is on
        self._instance_handles: list[Any] = []
        self._filter: Any = None
        self._steps = 0
        self.compiled = 0  # compilations that torch began
        self.before, self.after = self._make_hooks()
        self._compile: Any = None  # torch's own Module.compile
        self._wrapper: Any = None  # class and constructor of what torch.compile(model) returns
        self._in_place: list[tuple[weakref.ref[Any], Any, Any]] = []  # module, our call, torch's own
        self._codes = {self._module.Module._call_impl.__code__}  # noqa: SLF001 - what runs while a module is called

    # hooks

    def _make_hooks(self) -> tuple[Callable[..., None], Callable[..., None]]:  # noqa: C901 - flat on purpose: calls cost time
        hook, tracker = self._hook, self._hook.tracker
        is_compiling, gradients = compiling_check(self._torch), self._torch.is_grad_enabled
        is_exporting = compiling_check(self._torch, exporting=True)
        get_ident, forwards, names = threading.get_ident, self, self._names

        def before(module: Any, _args: Any) -> None:
            if is_exporting():
                return
            try:
                if tracker.in_backward or tracker.in_fetch or get_ident() != forwards.thread or hook.quiet:
                    return
                if tracker.forward_key and not forwards.is_stale(tracker.forward_key):
                    return
                start_ns = perf_counter_ns()
                tracker.forward_begins(id(module), start_ns, gradients=gradients())
                if tracker.metering:
                    tracker.own_ns += min(perf_counter_ns() - start_ns, METER_MOST_NS)
            except Exception as error:  # noqa: BLE001 - fail open
                hook.broke(error)

        def after(module: Any, _args: Any, _output: Any) -> None:
            if is_compiling():
                return
            try:
                key = id(module)
                if tracker.forward_key == key and get_ident() == forwards.thread:
                    end_ns = perf_counter_ns()
                    tracker.forward_ends(names.get(key) or forwards.name(module), end_ns)
                    if tracker.metering:
                        tracker.own_ns += min(perf_counter_ns() - end_ns, METER_MOST_NS)
            except Exception as error:  # noqa: BLE001 - fail open
                hook.broke(error)

        return before, after

    def name(self, module: Any) -> str:
        """The class of the model inside its wrappers."""
        name = self._names.get(id(module))
        if name is None:
            inner = module
            while (wrapped := _wrapped(inner)) is not None:
                inner = wrapped
            name = self._names[id(module)] = _class_name(inner)
        return name

    def is_stale(self, key: int) -> bool:
        """Whether the forward that is said to run has been left by an exception that no hook is told of (Ctrl-C)."""
        walker: Any = sys._getframe(2)  # noqa: SLF001 - the stack is the only witness
        while walker is not None:
            if walker.f_code in self._codes and id(walker.f_locals.get("self")) == key:
                return False
            walker = walker.f_back
        self._hook.tracker.forward_key = 0
        return True

    # models compiled in place

    def watch_compile(self) -> None:
        """See `model.compile()`: calls of such a model pass by every hook that dynamo does not put into the graph."""
        compile_module = getattr(self._module.Module, "compile", None)
        if compile_module is None:
            return
        hook = self._hook

        @functools.wraps(compile_module)
        def compile(module: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A001 - it takes the place of a method of this name
            result = compile_module(module, *args, **kwargs)
            try:
                if not hook.quiet and _has_parameters(module):
                    self._see_calls(module)
            except Exception as error:  # noqa: BLE001 - fail open
                hook.broke(error)
            return result

        self._compile = compile_module
        self._module.Module.compile = compile

    def watch_wrappers(self, wrapper: Any) -> None:
        """See what `torch.compile(model)` returns from its first call on; once something is compiled nobody looks."""
        original, hook = wrapper.__init__, self._hook

        @functools.wraps(original)
        def __init__(module: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it takes the place of a method of this name
            original(module, *args, **kwargs)
            try:
                if not hook.quiet and _has_parameters(module):
                    self._watch(module)
            except Exception as error:  # noqa: BLE001 - fail open
                hook.broke(error)

        wrapper.__init__ = __init__
        self._wrapper = (wrapper, original)

    def _see_calls(self, module: Any) -> None:
        before, after, is_compiling = self.before, self.after, compiling_check(self._torch)
        original, attribute = module._compiled_call_impl, "_compiled_call_impl"  # noqa: SLF001 - what torch itself calls

        def seen(self: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(*args, **kwargs)
            before(self, args)
            try:
                return original(*args, **kwargs)
            finally:
                after(self, args, None)

        self._codes.add(seen.__code__)
        call = functools.wraps(original)(functools.partial(seen, module))
        module.__dict__[attribute] = call
        self._in_place.append((weakref.ref(module), call, original))

    # discovery

    def discover(self) -> None:
        """Watch every module until the next optimizer step, or for a few steps; never once something was compiled."""
        self._steps = 0
        if self.discovering or self.compiled:
            return
        is_compiling, tracker = compiling_check(self._torch), self._hook.tracker
        before, after, found, seen = self.before, self.after, self._found, self._seen

        def any_before(module: Any, args: Any) -> None:
            if is_compiling():
                return
            key = id(module)
            if tracker.forward_key or key in seen:  # inside another, or seen by hooks of its own
                return
            if key not in found:
                if next(module.parameters(), None) is None:
                    return
                found[key] = module
            before(module, args)

        def any_after(module: Any, args: Any, output: Any) -> None:
            if is_compiling():
                return
            if tracker.forward_key == id(module) and id(module) in found:
                after(module, args, output)

        self._quiet()
        tracker.settled = None
        self.discovering = [
            self._module.register_module_forward_pre_hook(any_before),
            self._module.register_module_forward_hook(any_after, always_call=True),
        ]

    def models(self) -> list[Any]:
        """The outermost models known so far."""
        known = [reference() for reference in self._seen.values()]
        return [*(model for model in known if model is not None), *self._found.values()]

    def step_begins(self) -> None:
        """Count steps while discovering; a loop without an optimizer ends it here."""
        self._steps += 1
        if self._steps > DISCOVERY_STEPS and not self._hook.tracker.forward_key:
            self.settle()

    def settle(self, *, inside: bool = False) -> None:
        """Give what was found hooks of its own, and stop watching every module; not inside a forward, unless it must be."""
        if not self.discovering or (self._hook.tracker.forward_key and not inside):
            return
        for handle in self.discovering:
            handle.remove()
        self.discovering = []
        self._loud()
        for key, module in self._found.items():
            if key not in self._seen:
                self._watch(module)
        self._found.clear()

    def compiling(self) -> None:
        """Something is about to be compiled: the global hook must be gone, or its going would compile everything again."""
        self.compiled += 1
        self.settle(inside=True)
        if self.compiled == 1:
            self.adopt()

    def adopt(self) -> None:
        """Watch every model there is, for when nobody may look any more: before the first compilation, or a new optimizer.

        Hooks that stand before a model is compiled become nothing in its graph; later ones would compile it once more.
        """
        kind, known = self._module.Module, self._seen
        modules = [one for one in gc.get_objects() if issubclass(type(one), kind) and _is_a_users(one)]
        inside = {id(child) for one in modules for child in one._modules.values()}  # noqa: SLF001 - torch's own table
        for module in modules:
            outer = None if id(module) in inside else module
            while outer is not None:  # what it wraps may be called by itself as well
                if id(outer) not in known and _has_parameters(outer):
                    self._watch(outer)
                outer = _wrapped(outer)

    def remove(self) -> None:
        """Take every hook back."""
        for handle in [*self.discovering, *self._instance_handles]:
            handle.remove()
        self.discovering, self._instance_handles = [], []
        self._found.clear()
        self._seen.clear()
        self._loud()
        if self._compile is not None:
            self._module.Module.compile, self._compile = self._compile, None
        if self._wrapper is not None:
            self._wrapper[0].__init__, self._wrapper = self._wrapper[1], None
        for reference, ours, theirs in self._in_place:
            module = reference()
            if module is not None and module.__dict__.get("_compiled_call_impl") is ours:
                module.__dict__["_compiled_call_impl"] = theirs
        self._in_place.clear()

    def _watch(self, module: Any) -> None:
        key = id(module)
        handles = [
            module.register_forward_pre_hook(_private(module, "_forward_pre_hooks", self.before)),
            module.register_forward_hook(_private(module, "_forward_hooks", self.after), always_call=True),
        ]
        for table, handle in zip(("_forward_pre_hooks", "_forward_hooks"), handles, strict=True):
            hooks = module.__dict__.get(table)
            if isinstance(hooks, PrivateHooks):
                hooks.ours = (*hooks.ours, handle.id)
        self._instance_handles.extend(handles)
        seen, names = self._seen, self._names

        def forget(_: Any) -> None:
            seen.pop(key, None)
            names.pop(key, None)

        seen[key] = weakref.ref(module, forget)

    def _quiet(self) -> None:
        """PyTorch warns of global hooks beside compiled modules; ours do not fire twice, so the user need not know."""
        # Not by filterwarnings(): it makes Python forget which warnings the user has seen already, and show them again.
        self._filter = ("ignore", GLOBAL_HOOK_WARNING, Warning, None, 0)
        filters: Any = warnings.filters
        filters.insert(0, self._filter)

    def _loud(self) -> None:
        if self._filter is not None:
            with contextlib.suppress(ValueError):
                filters: Any = warnings.filters
                filters.remove(self._filter)
            self._filter = None


def _has_parameters(module: Any) -> bool:
    try:
        return next(module.parameters(), None) is not None
    except Exception:  # noqa: BLE001 - a module of the user's that cannot say so (yet) is not one that trains
        return False


def _is_a_users(module: Any) -> bool:
    """A whole module, and no graph that dynamo or TorchScript made of one."""
    made = any(kind.__name__ in {"GraphModule", "ScriptModule"} for kind in type(module).__mro__)
    return "_modules" in module.__dict__ and not made


def _wrapped(module: Any) -> Any:
    """The model inside what torch.compile returned, DistributedDataParallel and their like: modules that hold nothing but the model."""
    inside = module._modules  # noqa: SLF001 - torch's own table; attribute access may be overridden
    if not inside or not all(name in WRAPPED for name in inside):
        return None
    return next(inside[name] for name in WRAPPED if name in inside)


def _class_name(module: Any) -> str:
    """The class as its author called it: `fully_shard` puts one of its own before it."""
    classes = (kind for kind in type(module).__mro__ if not kind.__module__.startswith("torch.distributed."))
    return next(classes).__name__


def compiling_check(torch: Any, *, exporting: bool = False) -> Callable[[], bool]:
    """`torch.compiler.is_dynamo_compiling`, or what it was called before 2.3; it is asked seven times a step.

    Args:
        torch: the module.
        exporting: be told of `torch.export`, too, which runs a module's hooks; that check takes three times as long.
    """
    name = "is_compiling" if exporting else "is_dynamo_compiling"
    check: Callable[[], bool] | None = getattr(torch.compiler, name, None)
    if check is None:
        from torch._dynamo.external_utils import is_compiling  # noqa: PLC0415 - old versions only

        return is_compiling
    return check
