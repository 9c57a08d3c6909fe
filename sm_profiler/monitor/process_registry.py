"""The processes of a job on one node: while one of them lives the monitor runs, and how they ended decides about end markers."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from sm_profiler.formats.layout import IGNORED_FOLDER

PROC = Path("/proc")
ENDED = ".ended"  # by itself: the interpreter came to its end
CUT = ".cut"  # by a signal


class Members:
    """A file a process, named by its pid and start time, so that a number used again is not mistaken for it."""

    def __init__(self, root: Path, node: str, proc: Path = PROC) -> None:
        self._folder = Path(root, IGNORED_FOLDER, f"processes-{node}")
        self._proc = proc

    def register(self, pid: int) -> None:
        """This process belongs to the job.

        Raises:
            OSError: the folder cannot be written.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / f"{pid}-{start_time(pid, self._proc)}").touch()

    def leave(self, pid: int, *, by_itself: bool = True) -> None:
        """This process comes to its end."""
        path = self._folder / f"{pid}-{start_time(pid, self._proc)}"
        with contextlib.suppress(OSError):
            path.rename(path.with_name(path.name + (ENDED if by_itself else CUT)))

    def living(self) -> list[int]:
        """The processes that have not come to their end."""
        return [int(name.partition("-")[0]) for name in self._names() if self._lives(name)]

    def all_ended(self) -> bool:
        """Whether every process that was here has come to its end by itself."""
        names = self._names()
        return bool(names) and all(name.endswith(ENDED) for name in names)

    def dead(self) -> set[str]:
        """The names of processes that are no more, however they ended."""
        return {name for name in self._names() if not self._lives(name)}

    def forget(self, names: set[str]) -> None:
        """Remove processes that say nothing any more about how the job ends."""
        for name in names:
            (self._folder / name).unlink(missing_ok=True)

    def _lives(self, name: str) -> bool:
        pid, _, started = name.partition("-")
        return pid.isdigit() and started.isdigit() and start_time(int(pid), self._proc) == started

    def _names(self) -> list[str]:
        try:
            return os.listdir(self._folder)  # noqa: PTH208 - names are all that is needed, ten times a second
        except OSError:
            return []


def start_time(pid: int, proc: Path = PROC) -> str:
    """When a process started, in the kernel's ticks since boot; "" where it runs no more."""
    try:
        fields = (proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in {b"Z", b"X"} else fields[19].decode()
