"""Objects that the garbage collector tracks, looked through without harm to other threads.

A list of such objects holds tuples that another thread is building, and CPython raises SystemError when a tuple is
resized that something else refers to.  So the list must not outlive a single call of C code, in which no other thread
runs.  A collection may begin within that call and run callbacks in Python, so the garbage collector is disabled for the call.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, compress, repeat, starmap
from operator import is_not
from typing import Any


def count_by_type() -> Counter[type]:
    """Return how many objects there are of each type."""
    with without_collections():
        return Counter(map(type, chain.from_iterable(starmap(gc.get_objects, [()]))))


def of_types(kinds: set[type]) -> list[Any]:
    """Return all objects of exactly these types, of which tuple must be none."""
    return _selected(gc.get_objects, kinds.__contains__)


def referrers(held: object) -> list[Any]:
    """Return what refers to an object, except for tuples."""
    return _selected(partial(gc.get_referrers, held), partial(is_not, tuple))


def _selected(found: Callable[[], list[Any]], wanted: Callable[[type], bool]) -> list[Any]:
    """Return those objects of the list that `found` returns whose type is wanted.

    Iterators of C code are put together, as Python code would have to hold the list: `twice` yields it two times, and the
    two take turns in `compress(list, map(wanted, map(type, list)))`.  itertools.tee() will not do, since its blocks are
    tracked, too: they would hold one another, and with that some of the list.
    """
    twice = chain.from_iterable(map(repeat, starmap(found, [()]), [2]))
    flags = map(partial(map, wanted), map(partial(map, type), twice))
    with without_collections():
        return list(chain.from_iterable(map(compress, twice, flags)))


@contextmanager
def without_collections() -> Iterator[None]:
    """Disable the garbage collector meanwhile."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
