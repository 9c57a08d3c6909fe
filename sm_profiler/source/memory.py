"""Memory of this machine or container, and the largest file that is read with it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from sm_profiler.formats.outcome import MAX_FILE_BYTES

LEAST_BYTES = 2 << 30  # assumed if the system cannot answer
_FILE_SHARE = 4  # a file is held once by its reader and once by the process that parses it, beside its rows


def machine_bytes() -> int:
    """Return the memory of this machine, or the limit of this container if that is less."""
    memory = LEAST_BYTES
    with suppress(OSError, ValueError):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        with suppress(OSError, ValueError):  # "max" without a limit, no file outside of containers
            memory = min(memory, int(Path("/sys/fs/cgroup/memory.max").read_text("ascii")))
    return memory


def largest_file_bytes() -> int:
    """Return the size of the largest file that is read."""
    return min(MAX_FILE_BYTES, machine_bytes() // _FILE_SHARE)
