"""Compilations by XLA without a trace: a graph whose shapes vary is compiled for each shape that a call has first."""

from __future__ import annotations

from typing import Any

COMPILER = "XLA"
NODES = "_sm_profiler_nodes"  # of a function: operators of its latest graph; -1 if XLA compiles them
SHAPES = "_sm_profiler_shapes"  # of a function: the shapes of its calls
SLOWER = 3  # times as long as its quickest run takes a call at least in which XLA compiles
MAX_SHAPES = 10_000  # of a function
MAX_TENSORS = 64  # whose shapes are compared
MAX_DEPTH = 4

Shape = tuple[int, ...]


def another(function: Any, args: Any, kwargs: Any) -> str:
    """Return the first difference between a call's shapes and those of the call before; empty unless they are new.

    Args:
        function: a `tf.function` that XLA compiles.
        args: of the call.
        kwargs: of the call.
    """
    now = tuple(shapes(args) + shapes(kwargs))
    known: dict[tuple[Shape, ...], None] = function.__dict__.setdefault(SHAPES, {})
    if not now or now in known or len(known) >= MAX_SHAPES:
        return ""
    before = next(reversed(known), None)
    known[now] = None
    if before is None:
        return ""
    differs = next(((one, other) for one, other in zip(now, before, strict=False) if one != other), None)
    return "other arguments" if differs is None else f"shape is {differs[0]}, was {differs[1]}"


def shapes(value: Any, depth: int = 0) -> list[Shape]:
    """Return the shapes of the tensors and arrays in an argument, without those that are nested deeply."""
    if isinstance(value, (tuple, list, dict)):
        found: list[Shape] = []
        for one in value.values() if isinstance(value, dict) else value:
            if depth < MAX_DEPTH and len(found) < MAX_TENSORS:
                found += shapes(one, depth + 1)
        return found
    shape: Any = getattr(value, "shape", None)
    if not isinstance(shape, tuple) and getattr(shape, "rank", None) is None:  # of another kind, or unknown
        return []
    return [tuple(shape)]
