"""Objects of ours pass the installed SDK's isinstance checks, and the SDK's own pass ours.

An SDK v2 Estimator sorts its rules with `isinstance(rule, sagemaker.debugger.ProfilerRule)`.  Python asks `type(rule)`
first and `rule.__class__` next, so `__class__` names the SDK's class while the SDK is loaded; our classes never need the
SDK to exist, and it may be imported before or after them.
"""

from __future__ import annotations

import sys
from typing import Any, TypeVar

_ROOTS = ("sagemaker.debugger", "sagemaker.core.debugger")  # SDK v2, SDK v3
_OURS = __name__.rpartition(".")[0]

T = TypeVar("T")


def sdk_class(cls: type) -> type | None:
    """The loaded SDK's class of the same module and name; None where no SDK is loaded."""
    if not cls.__module__.startswith(f"{_OURS}."):  # a subclass made by a user has no counterpart of its own
        return next((found for base in cls.__mro__[1:] if (found := _known(base))), None)
    return _known(cls)


def _known(cls: type) -> type | None:
    ours, _, module = cls.__module__.rpartition(".")
    if ours != _OURS:
        return None
    for root in _ROOTS:
        name = f"{root}.{module}"
        for loaded in (sys.modules.get(name), _attribute(name)):
            found = getattr(loaded, cls.__name__, None)
            if isinstance(found, type) and found is not cls:
                return found
    return None


def _attribute(name: str) -> Any:
    """The module as its package holds it: the SDK's own still, where someone put ours into `sys.modules` after it."""
    first, *rest = name.split(".")
    found: Any = sys.modules.get(first)
    for part in rest:
        found = getattr(found, part, None)
    return found


def is_kind(value: object, cls: type[T]) -> bool:
    """Whether the value is one of ours, or the SDK's own of the same name."""
    if isinstance(value, cls):
        return True
    module = cls.__module__.rpartition(".")[2]
    names = {(f"{root}.{module}", cls.__name__) for root in _ROOTS}
    return any((base.__module__, base.__name__) in names for base in type(value).__mro__)


class Disguised:
    """An object that passes for the SDK's class of the same name while the SDK is loaded."""

    @property  # type: ignore[misc] # nobody may set it
    def __class__(self) -> type:
        """The SDK's class of the same name where the SDK is loaded, else our own."""
        return sdk_class(type(self)) or type(self)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Pickle and copy as what it is, not as what it passes for."""
        del protocol
        return _restored, (type(self), dict(self.__dict__))


def _restored(cls: type, state: dict[str, Any]) -> Any:
    made: Any = object.__new__(cls)
    made.__dict__.update(state)
    return made
