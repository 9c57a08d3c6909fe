"""The exit code of a process that leaves by `sys.exit`.

When Python calls exit functions, it has cleared the SystemExit, and only C's `exit` is given the code.  glibc hands it to
functions that were registered with `on_exit`.  Python code cannot run any more by then, but `fputc` can: it appends the code,
as one byte, to the file with the record of this process.  Other processes of the job make a trace file of it once this one is
gone (`formats.trace_recovery`).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sm_profiler.formats.layout import EXIT_FOLDER

_UNBUFFERED = 2  # _IONBF


def record_exit_code(root: Path, source: str, process: Mapping[str, Any]) -> None:
    """Leave the record of this process with its exit code, for an exit function; without glibc, do nothing.

    Args:
        root: the profile's folder.
        source: name of this process in file names.
        process: the record.

    Raises:
        OSError: the folder cannot be written.
    """
    library = ctypes.CDLL(None)
    try:
        on_exit, fputc = library.on_exit, library.fputc
    except AttributeError:  # another C library
        return
    path = root / EXIT_FOLDER / f"{source}_{os.getpid()}_{time.time_ns()}"
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644)
    with contextlib.suppress(OSError):  # a file system without locks
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until this process is gone, for other nodes
    try:
        os.write(file, json.dumps(process).encode() + b"\n")
    except OSError:
        path.unlink()
        os.close(file)
        raise
    library.fdopen.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(library.fdopen(file, b"a"))
    library.setvbuf(
        stream, None, _UNBUFFERED, 0
    )  # a destructor of a C++ library may end the process before buffers are written
    on_exit(fputc, stream)
