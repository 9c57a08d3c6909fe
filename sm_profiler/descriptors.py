"""Open files of our own.

`moved_up`: the script may close every descriptor that it finds and then open its own files.  The system gives a new file the
lowest free number: if the script had closed our file, its next one would get that number, and our next write would go there.
`open_regular`: opening a named pipe would wait for a writer, and a device may have no end.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_MOST = 4096  # forks copy the table of descriptors up to the highest number
_OURS = 96


def moved_up(file: int) -> int:
    """Return a number for an open file that none of the script's will get, as it has far fewer; the former one is closed."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = (min(limit, _MOST) if limit > 0 else _MOST) - _OURS
    try:
        high = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, lowest)
    except (OSError, ValueError):  # the limit is low, or so many are open
        return file
    os.close(file)
    return high


def open_descriptor(path: str | os.PathLike[str], flags: int) -> int:
    """Open a regular file with flags of `os.open`; what is created is readable to all.

    Another user of a shared folder may have put a pipe, which blocks, or a link in place of a file.

    Raises:
        NotRegularError: it is no regular file.
        OSError: it cannot be opened, or is a link.
    """
    file = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise NotRegularError(errno.EINVAL, "not a regular file", os.fspath(path))
    return file


class NotRegularError(OSError):
    """A path is that of a pipe, a device or a folder."""


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside a file, which becomes that file; after an error, as of a full disk, nothing is left."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        yield temporary
        temporary.rename(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def open_regular(path: str | os.PathLike[str], *, flags: int = 0) -> BinaryIO:
    """Open a regular file for reading.

    Args:
        path: the file.
        flags: further flags of `os.open`, such as `O_NOFOLLOW`, which refuses a link.

    Raises:
        NotRegularError: it is no regular file.
        OSError: it cannot be opened.
    """

    def opener(name: str, given: int) -> int:
        return os.open(name, given | flags | os.O_NONBLOCK)

    if not stat.S_ISREG(os.stat(path).st_mode):  # opening a device may have an effect
        raise NotRegularError(errno.EINVAL, "not a regular file", os.fspath(path))
    file = open(path, "rb", opener=opener)  # noqa: SIM115 - the caller closes it
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise NotRegularError(errno.EINVAL, "not a regular file", os.fspath(path))
    return file


def read_regular(path: str | os.PathLike[str], limit: int, *, flags: int = 0) -> bytes:
    """Return the contents of a regular file.

    Raises:
        OSError: it cannot be read, is no regular file, or has more than `limit` bytes.
    """
    with open_regular(path, flags=flags) as file:
        # the kernel's own files have no size, and some wait for news
        data = file.read(limit + 1) if os.fstat(file.fileno()).st_size else b""
    if len(data) > limit:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), os.fspath(path))
    return data
