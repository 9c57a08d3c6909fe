"""Wrappers around functions of other libraries, put in place when their module is loaded and taken out again.

Every module of Python may load this one (see `hook.auto`), so it imports no other module of the profiler.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

Wrap: TypeAlias = Callable[[Any], Any]
Begin: TypeAlias = Callable[..., Any]
End: TypeAlias = Callable[[Any, Any, BaseException | None], Any]
_ABSENT = object()


class Replaced(NamedTuple):
    """An attribute that was replaced, and can be put back for a while."""

    owner: Any
    name: str
    original: Any
    value: Any

    def hide(self) -> None:
        """Put the original back, unless other code has replaced it since."""
        if vars(self.owner).get(self.name) is self.value:
            setattr(self.owner, self.name, self.original)

    def show(self) -> None:
        """Replace it again."""
        if vars(self.owner).get(self.name) is self.original:
            setattr(self.owner, self.name, self.value)


class Patches:
    """Attributes that were replaced, and what they were.

    What waits for a module is not replaced any more after `remove`, even if the module is loaded later.

    Args:
        failed: takes errors of the hook's own actions.
    """

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed
        self._replaced: list[tuple[Any, str, Any, Any]] = []
        self._on = True

    def when_loaded(self, module: str, action: Callable[[], None]) -> None:
        """Call `action` once a module is loaded, unless the patches are removed by then; it never raises."""

        def guarded() -> None:
            if self._on:
                try:
                    action()
                except Exception as error:  # an import of the program must not fail
                    self._failed(error)

        when_loaded(module, guarded)

    def replace(self, owner: Any, name: str, wrap: Wrap) -> Replaced | None:
        """Replace a function of a module or a method of a class; it stays if it is missing or not a plain function."""
        original = vars(owner).get(name)
        if not callable(original) or (isinstance(owner, type) and not isinstance(original, FunctionType)):
            return None
        value = _in_place_of(original, wrap(original))
        self.put(owner, name, value)
        return Replaced(owner, name, original, value)

    def around(self, owner: Any, name: str, begin: Begin, end: End | None = None) -> None:
        """Replace a function or method by a function that calls it between two actions; see `timed`."""
        self.replace(owner, name, lambda original: timed(original, begin, end, self._failed))

    def after(self, owner: Any, name: str, action: Callable[..., Any]) -> None:
        """Replace a function or method by a function that calls it before an action; see `after`."""
        self.replace(owner, name, lambda original: after(original, action, self._failed))

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of any kind; `remove` deletes it if the owner itself did not have it."""
        original = vars(owner).get(name, _ABSENT)
        if hasattr(value, "__wrapped__"):
            _name_by_place(owner, name, value)
        setattr(owner, name, value)
        self._replaced.append((owner, name, original, value))

    def remove(self) -> None:
        """Restore everything that no other code has replaced since."""
        self._on = False
        while self._replaced:
            owner, name, original, value = self._replaced.pop()
            if vars(owner).get(name) is not value:
                continue
            if original is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


def timed(original: Any, begin: Begin, end: End | None, failed: Callable[[Exception], None]) -> Any:
    """Return a function that calls `original` between two actions; their errors do not reach the caller.

    PyTorch's wrappers, which run several times in steps of a millisecond, are written out instead: calls cost time.

    Args:
        original: function of another library.
        begin: gets the call's arguments; returns what `end` needs, or None if this call needs no end.
        end: gets that, the call's result and its exception; either is None.
        failed: takes the errors of both.
    """

    @_wraps(original)
    def observed(*args: Any, **kwargs: Any) -> Any:
        try:
            begun = begin(*args, **kwargs)
        except Exception as problem:  # fail open
            failed(problem)
            begun = None
        if begun is None or end is None:
            return original(*args, **kwargs)
        try:
            result = original(*args, **kwargs)
        except BaseException as error:
            try:
                end(begun, None, error)
            except Exception as problem:  # fail open
                failed(problem)
            raise
        try:
            end(begun, result, None)
        except Exception as problem:  # fail open
            failed(problem)
        return result

    return observed


def after(original: Any, action: Callable[..., Any], failed: Callable[[Exception], None]) -> Any:
    """Return a function that calls `original` and then an action, whose errors do not reach the caller.

    Args:
        original: function of another library.
        action: gets the call's result and arguments; returns what replaces the result, or None to keep it.
        failed: takes the action's errors.
    """

    @_wraps(original)
    def followed(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        try:
            changed = action(result, *args, **kwargs)
        except Exception as problem:  # fail open
            failed(problem)
            return result
        return result if changed is None else changed

    return followed


def _in_place_of(original: Any, function: Any) -> Any:
    """Return a function, or what calls it if the original is C's, which a class may hold without making it a method.

    It answers as the original does: its type, signature and text.  It is pickled by its name, as a function is.
    """
    if hasattr(original, "__get__"):
        return function
    members = {
        "__call__": staticmethod(function),
        "__class__": property(lambda _self: type(original)),
        "__reduce__": lambda self: self.__qualname__,
        "__repr__": lambda _self: repr(original),
    }
    called = type(type(original).__name__, (), members)()
    for name in (*functools.WRAPPER_ASSIGNMENTS, "__self__", "__text_signature__"):
        if hasattr(original, name):
            setattr(called, name, getattr(original, name))
    vars(called).update(vars(function))
    return called


def _name_by_place(owner: Any, name: str, value: Any) -> None:
    """Name a wrapper by the place that it is put in, unless its original has its name from there.

    Functions are pickled by the name under which they are found; `torch.save` is `torch.serialization.save`, where the
    original stays.  Where the hook is not installed, the same name is that of the original.
    """
    found = sys.modules.get(getattr(value, "__module__", None) or "")
    *holders, last = str(getattr(value, "__qualname__", "")).split(".")
    for holder in holders:
        found = vars(found).get(holder) if hasattr(found, "__dict__") else None
    if found is owner and last == name:
        return
    with contextlib.suppress(AttributeError, TypeError):
        is_class = isinstance(owner, type)
        place = owner.__module__ if is_class else owner.__name__, f"{owner.__qualname__}.{name}" if is_class else name
        value.__module__, value.__qualname__ = place


def _wraps(original: Any) -> Callable[[Any], Any]:
    """Return `functools.wraps(original)`; the name of a method in C++ may be no text."""
    names = functools.WRAPPER_ASSIGNMENTS
    texts = [name for name in names if "name" not in name or isinstance(getattr(original, name, ""), str)]
    return functools.wraps(original, texts)


def when_loaded(name: str, action: Callable[[], None]) -> None:
    """Call `action` once module `name` is loaded: now, or right after its import."""
    finder = next((finder for finder in sys.meta_path if isinstance(finder, LoadFinder)), None)
    if finder is not None and name in finder.loading:
        finder.loading[name].append(action)
        return
    if name in sys.modules:
        action()
        return
    if finder is None:
        finder = LoadFinder()
        sys.meta_path.insert(0, finder)
    finder.waiting.setdefault(name, []).append(action)


class LoadFinder:
    """Finds no module itself: it delegates to the other finders and reports when an awaited module is loaded.

    Attributes:
        waiting: module → what to do once it is loaded.
        loading: the same of the modules whose import has begun.
    """

    def __init__(self) -> None:
        self.waiting: dict[str, list[Callable[[], None]]] = {}
        self.loading: dict[str, list[Callable[[], None]]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's own spec, with a loader that reports when it is done."""
        actions = self.waiting.pop(name, None)
        if actions is None:
            return None
        try:
            for finder in sys.meta_path:
                find = None if finder is self else getattr(finder, "find_spec", None)
                spec: ModuleSpec | None = find(name, path, target) if find else None
                if spec is not None:
                    _report_load(spec, self)
                    return spec
            return None  # not installed (yet)
        finally:
            self.waiting[name] = actions  # until it is loaded: importlib.util.find_spec() only asks


class _Relay:
    """Takes the place of a loader that takes no attribute, until its module is loaded."""

    def __init__(self, loader: Any, exec_module: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self.exec_module = exec_module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _report_load(spec: ModuleSpec, finder: LoadFinder) -> None:
    """Have the loader of a module run the actions that wait for it."""
    loader: Any = spec.loader
    load = getattr(loader, "exec_module", None)
    if load is None or getattr(load, "awaits", "") == spec.name:  # it was found before
        return
    before = getattr(loader, "__dict__", {}).get("exec_module", _ABSENT)

    def exec_module(module: ModuleType) -> None:
        if module.__name__ != spec.name:  # a loader may be that of several modules, as for a zip file
            load(module)
            return
        if getattr(loader, "__dict__", {}).get("exec_module") is exec_module:
            if before is _ABSENT:
                del loader.exec_module
            else:
                loader.exec_module = before
        elif spec.loader is not loader:
            spec.loader = module.__loader__ = loader
        actions = finder.loading[spec.name] = finder.waiting.pop(spec.name, [])
        try:
            load(module)
        finally:
            finder.loading.pop(spec.name, None)
        for action in actions:
            action()

    exec_module.awaits = spec.name  # type: ignore[attr-defined]
    # Patches this loader object for this module only: code that inspects the module later finds its usual loader.
    try:
        if isinstance(loader, type):  # it would keep the attribute of all modules of its kind
            raise TypeError
        loader.exec_module = exec_module
    except (AttributeError, TypeError):  # it has slots, or is one of another language's
        relay: Any = _Relay(loader, exec_module)
        spec.loader = relay
