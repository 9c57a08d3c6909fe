"""Objects that a growing process collects: counted by type when memory has grown, and compared with the count before.

A count walks over all objects that the garbage collector tracks, within single calls of C code, so that hardly any
reference to them outlives it. It takes 80 ms in a process that has imported torch and 220 ms for a million objects,
during which Python code waits; so it happens only when memory grows, a few times in all, and not in processes with very
many objects, and it is recorded as the hook's own work.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from itertools import compress
from operator import attrgetter
from time import perf_counter_ns
from typing import Any

import attrs

from sm_profiler.formats.event_names import OBJECTS
from sm_profiler.hook.collector import Collector
from sm_profiler.hook.holders import lines_adding_to
from sm_profiler.hook.recorder import resident_bytes
from sm_profiler.hook.steps import Record
from sm_profiler.hook.tracked import count_by_type, of_types

WARM_UP = 3  # beats until memory is compared
GROWTH = 50_000_000  # bytes gained before a count
GROWTH_SHARE = 0.1  # of the memory, likewise
MAX_COUNTS = 3
MAX_BLOCKS = 2_000_000  # blocks of Python's allocator; a process with more is not counted
MAX_TYPES = 8  # reported
LONG = 8  # elements from which a list is compared
CANDIDATES = 20  # lists that have grown most, whose last elements are measured
MAX_DEPTH, MAX_ELEMENTS = 3, 20  # of an element that is a container
POINTER = 8  # bytes, of an object of unknown size


@attrs.frozen
class Census:
    """Objects at one moment: their number by type, what tensors hold, and the lengths of long lists and dicts by id."""

    types: Counter[type]
    tensor_bytes: int
    tensors_in_graphs: int
    lengths: dict[int, int]


class Objects(Collector):
    """Counts on the recorder's thread."""

    name = "objects"

    def __init__(
        self,
        append: Callable[[Record], None],
        resident: Callable[[], int] = resident_bytes,
        clock: Callable[[], int] = perf_counter_ns,
        work: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._append = append
        self._work = work
        self._resident = resident
        self._clock = clock
        self.start()

    def start(self) -> None:
        """Begin to compare."""
        self._beats = self._counts = 0
        self._level = 0
        self._first: Census | None = None

    def forked(self) -> None:
        """Forget the parent's objects."""
        self.start()

    def beat(self) -> None:
        """Count if memory has grown enough since the last count."""
        self._beats += 1
        if self._beats < WARM_UP or self._counts >= MAX_COUNTS:
            return
        resident = self._resident()
        if not self._level:
            self._level = resident
        elif resident - self._level >= max(GROWTH, GROWTH_SHARE * self._level):
            self._level = resident
            self._counts += 1
            if sys.getallocatedblocks() <= MAX_BLOCKS:
                with self._work():
                    self._compare()

    def _compare(self) -> None:
        began = self._clock()
        found, grown = census(self._first.lengths if self._first else {})
        first = self._first
        if first is None:
            self._first = found
            return
        text, lines = "", list[tuple[str, int, str]]()
        if grown is not None:
            holder, lines = lines_adding_to(grown)
            text = _describe(grown, holder, first.lengths[id(grown)])
            del grown
        more = Counter({kind: count - first.types.get(kind, 0) for kind, count in found.types.items()})
        args: dict[str, Any] = {
            "types": {_name(kind): count for kind, count in more.most_common(MAX_TYPES) if count > 0},
            "tensor_bytes": found.tensor_bytes - first.tensor_bytes,
            "tensors_in_graphs": found.tensors_in_graphs - first.tensors_in_graphs,
        }
        if text:
            args["container"] = text
        if lines:
            args["lines"] = lines
        self._append((OBJECTS, "objects", began, self._clock(), -1, args))


def census(before: dict[int, int]) -> tuple[Census, Any]:
    """Count all objects, and find the list or dict that has gained most since `before`, None if none has grown."""
    types = count_by_type()
    kinds = {kind for kind in types if _full_name(kind) in TENSORS}
    size = in_graphs = 0
    if kinds:
        with contextlib.suppress(RuntimeError, NotImplementedError):  # sparse tensors have no size
            size = sum(map(attrgetter("nbytes"), of_types(kinds)))
        with contextlib.suppress(RuntimeError):  # torch.compile keeps tensors that are not defined
            in_graphs = sum(types[kind] for kind in kinds) - sum(map(attrgetter("is_leaf"), of_types(kinds)))
    containers = of_types({list, dict})
    long = list(compress(containers, map(LONG.__le__, map(len, containers))))
    del containers
    lengths = {id(one): len(one) for one in long}
    known = [one for one in long if lengths[id(one)] > before.get(id(one), sys.maxsize)]
    del long
    known.sort(key=lambda one: before[id(one)] - lengths[id(one)])
    grown = max(known[:CANDIDATES], key=lambda one: _weight(one, lengths[id(one)] - before[id(one)]), default=None)
    return Census(types, size, in_graphs, lengths), grown


def _weight(container: Any, gained: int) -> tuple[bool, int]:
    """Return what rates how much a container has gained: whether it holds graphs, and bytes."""
    graphs, size = _held(_last(container), MAX_DEPTH)
    return graphs, gained * size


def _held(one: Any, depth: int) -> tuple[bool, int]:
    """Return whether something holds tensors with their graphs, and about how many bytes it holds."""
    kind = type(one)
    if kind in (list, tuple, dict) and depth and one:
        each = list(one.copy().values() if kind is dict else one)  # a copy, since other threads may add to it
        found = [_held(inner, depth - 1) for inner in each[-MAX_ELEMENTS:]]
        return any(graphs for graphs, _ in found), sum(size for _, size in found) * len(each) // len(found)
    if _full_name(kind) in (*TENSORS, "numpy.ndarray"):
        with contextlib.suppress(RuntimeError, NotImplementedError):
            return not getattr(one, "is_leaf", True), int(one.nbytes)
    return False, POINTER


def _last(container: Any) -> Any:
    try:
        return container[-1] if isinstance(container, list) else container[next(reversed(container))]
    except (IndexError, KeyError, StopIteration, RuntimeError):
        return None


TENSORS = ("torch.Tensor", "torch.nn.parameter.Parameter")


def _describe(container: Any, holder: str, before: int) -> str:
    """Return what a container is called and holds, such as `list history in __main__: 100 → 900 elements of Tensor`."""
    name = f" {holder}" if holder else ""
    return (
        f"{type(container).__name__}{name}: {before:,} → {len(container):,} elements of {_name(type(_last(container)))}"
    )


def _full_name(kind: type) -> str:
    """Return module and name; types that C code creates (those of Triton's compiler do) may have no module."""
    return f"{getattr(kind, '__module__', '')}.{kind.__qualname__}"


def _name(kind: type) -> str:
    return kind.__qualname__ if getattr(kind, "__module__", "") in ("", "builtins", "torch") else _full_name(kind)
