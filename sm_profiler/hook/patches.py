"""Wrappers around functions of other libraries, put in place when their module is loaded and taken out again."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from sm_profiler.hook.import_watch import when_loaded

Wrap = Callable[[Any], Any]


class Patches:
    """Attributes that were replaced, and what they were.

    Nothing is replaced after `remove`, even if a module is loaded later.
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
                except Exception as error:  # noqa: BLE001 - an import of the program must not fail
                    self._failed(error)

        when_loaded(module, guarded)

    def replace(self, owner: Any, name: str, wrap: Wrap) -> None:
        """Replace a function of a module or a method of a class; one that is missing or not a plain function stays."""
        original = vars(owner).get(name)
        if isinstance(owner, type) and not isinstance(original, FunctionType):
            return
        if callable(original):
            wrapper = wrap(original)
            setattr(owner, name, wrapper)
            self._replaced.append((owner, name, original, wrapper))

    def remove(self) -> None:
        """Restore everything that no other code has replaced since."""
        self._on = False
        while self._replaced:
            owner, name, original, wrapper = self._replaced.pop()
            if vars(owner).get(name) is wrapper:
                setattr(owner, name, original)
