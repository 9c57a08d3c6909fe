"""Objects that a growing process collects: counted by type when memory has grown, and compared with the count before.

A count walks over all objects that the garbage collector tracks, within single calls of C code, so that hardly any
reference to them outlives it. It takes 80 ms in a process that has imported torch and 220 ms for a million objects,
during which Python code waits; so it happens only when memory grows, a few times in all, and not in processes with very
many objects, and it is recorded as the hook's own work.
"""

from __future__ import annotations

import contextlib
import gc
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
from sm_profiler.hook.recorder import memory
from sm_profiler.hook.steps import Record

WARM_UP = 3  # beats until memory is compared
GROWTH = 50_000_000  # bytes gained before a count
GROWTH_SHARE = 0.1  # of the memory, likewise
MAX_COUNTS = 3
MAX_BLOCKS = 2_000_000  # blocks of Python's allocator; a process with more is not counted
MAX_TYPES = 8  # reported
LONG = 100  # elements from which a list is compared


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
        resident: Callable[[], int] = lambda: int(memory()["resident_bytes"]),
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
        more = Counter({kind: count - first.types.get(kind, 0) for kind, count in found.types.items()})
        args: dict[str, Any] = {
            "types": {_name(kind): count for kind, count in more.most_common(MAX_TYPES) if count > 0},
            "tensor_bytes": found.tensor_bytes - first.tensor_bytes,
            "tensors_in_graphs": found.tensors_in_graphs - first.tensors_in_graphs,
        }
        if grown:
            args["container"] = grown
        self._append((OBJECTS, "objects", began, self._clock(), -1, args))


def census(before: dict[int, int]) -> tuple[Census, str]:
    """Count all objects, and describe the list or dict that has grown most since `before`."""
    types = Counter(map(type, gc.get_objects()))
    kinds = {kind for kind in types if f"{kind.__module__}.{kind.__qualname__}" in TENSORS}
    size = in_graphs = 0
    if kinds:
        with contextlib.suppress(RuntimeError, NotImplementedError):  # sparse tensors have no size
            size = sum(map(attrgetter("nbytes"), _of(kinds)))
        in_graphs = sum(types[kind] for kind in kinds) - sum(map(attrgetter("is_leaf"), _of(kinds)))
    containers = list(_of({list, dict}))
    long = list(compress(containers, map(LONG.__le__, map(len, containers))))
    del containers
    lengths = {id(one): len(one) for one in long}
    known = [one for one in long if lengths[id(one)] > before.get(id(one), sys.maxsize)]
    grown = max(known, key=lambda one: lengths[id(one)] - before[id(one)], default=None)
    text = "" if grown is None else _describe(grown, lengths[id(grown)], before[id(grown)])
    return Census(types, size, in_graphs, lengths), text


TENSORS = ("torch.Tensor", "torch.nn.parameter.Parameter")


def _of(kinds: set[type]) -> Any:
    """Return an iterator over all objects of exactly these types."""
    found = gc.get_objects()
    return compress(found, map(kinds.__contains__, map(type, found)))


def _describe(container: Any, length: int, before: int) -> str:
    """Return what a container is called and holds, such as `list history in __main__: 100 → 900 elements of Tensor`."""
    try:
        last = container[-1] if isinstance(container, list) else container[next(reversed(container))]
    except (IndexError, KeyError, StopIteration, RuntimeError):
        last = None
    name = ""
    for module_name, module in list(sys.modules.items()):
        for key, value in list(getattr(module, "__dict__", {}).items()):
            if value is container:
                name = f" {key} in {module_name}"
    return f"{type(container).__name__}{name}: {before:,} → {length:,} elements of {_name(type(last))}"


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ in ("builtins", "torch") else f"{kind.__module__}.{kind.__qualname__}"
