"""Parts of a state that are outside of memory, or not merged, until they are needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs


@attrs.frozen
class Stored:
    """A fold or rule outside of memory; `load` returns it."""

    load: Callable[[], Any]


def loaded(part: Any) -> Any:
    """Return a part of a state, which may be stored."""
    return part.load() if isinstance(part, Stored) else part
