"""Outermost forwards: found by a global module hook while that is on, then seen by hooks on the models themselves."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import warnings
import weakref
from collections import OrderedDict
from importlib import import_module
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from sm_profiler.hook.steps import METER_MOST_NS

if TYPE_CHECKING:
    from collections.abc import Callable, ValuesView

    from sm_profiler.hook.core import Hook

GLOBAL_HOOK_WARNING = r"Using `torch.compile\(module\)` when there are global hooks"
COMPILATIONS_LOOKED_AT = 3  # looking for compiled models costs some milliseconds
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

    # hooks

    def _make_hooks(self) -> tuple[Callable[..., None], Callable[..., None]]:  # noqa: C901 - flat on purpose: calls cost time
        hook, tracker = self._hook, self._hook.tracker
        is_compiling, gradients = compiling_check(self._torch), self._torch.is_grad_enabled
        get_ident, forwards, names = threading.get_ident, self, self._names

        def before(module: Any, _args: Any) -> None:
            if is_compiling():
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
            while (wrapped := inner._modules.get("_orig_mod") or _wrapped(inner)) is not None:  # noqa: SLF001 - torch's own table; attribute access may be overridden
                inner = wrapped
            name = self._names[id(module)] = type(inner).__name__
        return name

    def is_stale(self, key: int) -> bool:
        """Whether the forward that is said to run has been left by an exception that no hook is told of (Ctrl-C)."""
        code, frame = self._module.Module._call_impl.__code__, sys._getframe(2)  # noqa: SLF001 - the stack is the only witness
        walker: Any = frame
        while walker is not None:
            if walker.f_code is code and id(walker.f_locals.get("self")) == key:
                return False
            walker = walker.f_back
        self._hook.tracker.forward_key = 0
        return True

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
        if self.compiled <= COMPILATIONS_LOOKED_AT:
            wrapper = import_module("torch._dynamo.eval_frame").OptimizedModule
            for module in gc.get_referrers(wrapper):
                if type(module) is wrapper and id(module) not in self._seen:
                    self._watch(module)

    def remove(self) -> None:
        """Take every hook back."""
        for handle in [*self.discovering, *self._instance_handles]:
            handle.remove()
        self.discovering, self._instance_handles = [], []
        self._found.clear()
        self._seen.clear()
        self._loud()

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
        before = len(warnings.filters)
        warnings.filterwarnings("ignore", message=GLOBAL_HOOK_WARNING)
        self._filter = warnings.filters[0] if len(warnings.filters) > before else None

    def _loud(self) -> None:
        if self._filter is not None:
            with contextlib.suppress(ValueError):
                filters: Any = warnings.filters
                filters.remove(self._filter)
            self._filter = None


def _wrapped(module: Any) -> Any:
    """The model inside DistributedDataParallel and its like: modules that hold nothing but `module`."""
    inside = module._modules  # noqa: SLF001 - torch's own table; attribute access may be overridden
    return inside["module"] if len(inside) == 1 and "module" in inside else None


def compiling_check(torch: Any) -> Callable[[], bool]:
    """`torch.compiler.is_compiling`, or what it was called before 2.3."""
    check: Callable[[], bool] | None = getattr(torch.compiler, "is_compiling", None)
    if check is None:
        from torch._dynamo.external_utils import is_compiling  # noqa: PLC0415 - old versions only

        return is_compiling
    return check
