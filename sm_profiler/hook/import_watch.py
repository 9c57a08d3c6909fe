"""Run an action right after a module has been imported, without importing it earlier than the program does."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType


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
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find else None
            if spec is not None:
                self.waiting[name] = actions  # until it is loaded: importlib.util.find_spec() only asks
                _report_load(spec, self)
                return spec
        self.waiting[name] = actions  # not installed (yet)
        return None


def _report_load(spec: ModuleSpec, finder: LoadFinder) -> None:
    loader: Any = spec.loader
    load = getattr(loader, "exec_module", None)
    if load is None:
        return

    def exec_module(module: ModuleType) -> None:
        loader.__dict__.pop("exec_module", None)
        actions = finder.loading[spec.name] = finder.waiting.pop(spec.name, [])
        try:
            load(module)
        finally:
            finder.loading.pop(spec.name, None)
        for action in actions:
            action()

    # Patches this loader object for this call only: code that inspects the module later finds its usual loader.
    loader.exec_module = exec_module
