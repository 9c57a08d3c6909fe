"""Numbers for things that repeat."""

from __future__ import annotations

from typing import Any


class Numbering(dict[Any, int]):
    """Numbers its keys by first appearance; `numbering[key]` never fails."""

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        return number
