"""Wrappers around functions of other libraries, put in place when their module is loaded and taken out again."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from sm_profiler.hook.import_watch import when_loaded

Wrap = Callable[[Any], Any]
_ABSENT = object()


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
                except Exception as error:  # an import of the program must not fail
                    self._failed(error)

        when_loaded(module, guarded)

    def replace(self, owner: Any, name: str, wrap: Wrap) -> None:
        """Replace a function of a module or a method of a class; one that is missing or not a plain function stays."""
        original = vars(owner).get(name)
        if isinstance(owner, type) and not isinstance(original, FunctionType):
            return
        if callable(original):
            self.put(owner, name, wrap(original))

    def put(self, owner: Any, name: str, value: Any) -> None:
        """Set an attribute of any kind; `remove` deletes one that the owner itself did not have."""
        original = vars(owner).get(name, _ABSENT)
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
