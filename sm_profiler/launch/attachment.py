"""What `attach` gives back: it can be undone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs


@attrs.define
class Attachment:
    """A configuration attached to a launcher; `detach()`, or the end of a `with` block, takes it off again.

    Attributes:
        says: what it will do, in one line.
    """

    says: str
    _undo: list[Callable[[], Any]] = attrs.field(factory=list, repr=False)

    def detach(self) -> None:
        """Put the launcher back as it was; doing it twice changes nothing."""
        while self._undo:
            self._undo.pop()()

    def __enter__(self) -> Attachment:  # noqa: PYI034 - Self came with Python 3.11
        """The attachment itself."""
        return self

    def __exit__(self, *error: object) -> None:
        """Detach."""
        self.detach()


def replace_attributes(target: object, values: dict[str, Any]) -> Callable[[], None]:
    """Set attributes, and return what sets them back."""
    before = {name: getattr(target, name) for name in values}

    def restore() -> None:
        for name, value in before.items():
            setattr(target, name, value)

    for name, value in values.items():
        setattr(target, name, value)
    return restore
