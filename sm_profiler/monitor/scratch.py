"""Folders for temporary files of windows, which the monitor of a later run removes if their process was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

from sm_profiler.descriptors import moved_up

PREFIX = "sm-profiler-hook-"
LEAST_SECONDS = 600.0  # age of a folder that is removed: a new one, or one that is handed on, has no lock for a moment
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_held: dict[Path, int] = {}  # folder → its open file, with a lock as long as this process lives


def new_folder() -> Path:
    """Return a new folder, which no other process removes while this one lives."""
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    hold(folder)
    return folder


def hold(folder: Path) -> None:
    """Let no other process remove a folder while this one lives, if the file system has locks."""
    if folder in _held:
        return
    for other in [known for known in _held if not known.exists()]:
        os.close(_held.pop(other))
    with contextlib.suppress(OSError):
        _held[folder] = file = moved_up(os.open(folder, _FLAGS))
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)


def remove_left() -> None:
    """Remove this user's folders whose processes are gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # held, removed meanwhile, or no folder
            _remove_if_left(folder)


def _remove_if_left(folder: Path) -> None:
    file = os.open(folder, _FLAGS)
    try:
        state = os.fstat(file)
        if state.st_uid == os.geteuid() and time.time() - state.st_mtime >= LEAST_SECONDS:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(file)
