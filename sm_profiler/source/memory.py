"""Memory of this machine or container, and the largest file that is read with it."""

from __future__ import annotations

from sm_profiler.formats.outcome import MAX_FILE_BYTES
from sm_profiler.limits import memory_total

LEAST_BYTES = 2 << 30  # assumed if the system cannot answer
_FILE_SHARE = 4  # a file is held once by its reader and once by the process that parses it, beside its rows


def machine_bytes() -> int:
    """Return the memory of this machine, or the limit of this container if that is less."""
    try:
        return memory_total()
    except (OSError, ValueError):
        return LEAST_BYTES


def largest_file_bytes() -> int:
    """Return the size of the largest file that is read."""
    return min(MAX_FILE_BYTES, machine_bytes() // _FILE_SHARE)
