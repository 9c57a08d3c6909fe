"""Memory that Python allocates during a piece of work."""

import tracemalloc
from collections.abc import Callable


def peak_of(work: Callable[[], object]) -> int:
    """Return the bytes that were allocated at most while it ran."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
