"""Files of a local folder."""

from __future__ import annotations

import errno
import os
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from sm_profiler.errors import SourceError
from sm_profiler.storage.base import AccessDeniedError, FileInfo, MissingFileError, UnreadableFileError

MAX_DEPTH = 40  # of folders
LEADS_OUT = "is a link that leads out of the profile"


def safe_path(root: Path, key: str) -> Path:
    """Return the path of a key below a root.

    Raises:
        SourceError: the key is not a relative path, or leaves the root.
    """
    parts = key.split("/")
    if not key or "\0" in key or "\\" in key or any(part in {"", ".", ".."} for part in parts):
        raise SourceError(f"{key!r} is not a file name below {root}")
    return root.joinpath(*parts)


def real_path(root: Path, key: str) -> Path:
    """Return the path of a key below a root with all links resolved.

    Raises:
        UnreadableFileError: it leads out of the root, to a file that is not part of the profile.
        SourceError: the key is not a relative path.
    """
    path = safe_path(root, key)
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(os.path.realpath(root)):
        raise UnreadableFileError(f"{path} {LEADS_OUT}")
    return real


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    A link is refused, and so is a named pipe, whose opening would wait for a writer.

    Raises:
        OSError: it cannot be opened, or is not a regular file.
    """
    file = open(path, "rb", opener=_open_without_waiting)  # noqa: SIM115 - the caller closes it
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return file


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


class LocalStorage:
    """The files below a local folder.

    Symbolic links to folders are not followed, and those to files only if they stay below the folder.
    """

    parallel_reads = 1

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).expanduser()

    @property
    def uri(self) -> str:
        """The folder's path."""
        return str(self.root)

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[FileInfo]:
        """Yield all files whose key begins with `prefix` and follows `start_after`, in the order of their keys."""
        folder = prefix.rpartition("/")[0]
        start = safe_path(self.root, folder) if folder else self.root
        yield from self._walk(start, folder + "/" if folder else "", prefix, start_after or "")

    def _walk(self, folder: Path, above: str, prefix: str, after: str) -> Iterator[FileInfo]:
        try:
            with os.scandir(folder) as entries:
                named = sorted((e.name + "/" if e.is_dir(follow_symlinks=False) else e.name, e) for e in entries)
        except FileNotFoundError:
            return
        except OSError as error:
            raise SourceError(f"{folder} cannot be listed: {error.strerror}") from error
        for name, entry in named:
            key = above + name
            if name.endswith("/"):
                if above.count("/") > MAX_DEPTH:  # no writer nests folders like that
                    continue
                if (key.startswith(prefix) or prefix.startswith(key)) and (key > after or after.startswith(key)):
                    yield from self._walk(folder / entry.name, key, prefix, after)
            elif key.startswith(prefix) and key > after:
                try:
                    status = entry.stat()
                except OSError:
                    continue  # renamed or removed since the folder was listed
                if entry.is_file():
                    yield FileInfo(key, status.st_size, status.st_mtime, f"{status.st_mtime_ns:x}-{status.st_ino:x}")

    def folders(self) -> Iterator[str]:
        """Yield the names of the folders directly below the root, each with a slash at its end."""
        try:
            with os.scandir(self.root) as entries:
                yield from sorted(f"{entry.name}/" for entry in entries if entry.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            return
        except OSError as error:
            raise SourceError(f"{self.root} cannot be listed: {error.strerror}") from error

    def read(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return the bytes of a file, or those from `start` up to but not including `end`."""
        path = safe_path(self.root, key)
        try:
            with open_regular(real_path(self.root, key)) as file:
                if start:
                    file.seek(start)
                data = file.read() if end is None else file.read(max(0, end - (start or 0)))
        except FileNotFoundError as error:
            raise MissingFileError(f"{path} does not exist") from error
        except PermissionError as error:
            raise AccessDeniedError(f"{path} cannot be read: {error.strerror}") from error
        except OSError as error:
            raise UnreadableFileError(f"{path} cannot be read: {error.strerror}") from error
        if data is None:  # a link to a file of the kernel that would wait for data
            raise UnreadableFileError(f"{path} cannot be read: it has no data yet")
        return data

    def write(self, key: str, data: bytes) -> None:
        """Store a file atomically, through a temporary file next to it."""
        path = safe_path(self.root, key)
        temporary = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                temporary.write_bytes(data)
                temporary.replace(path)
            finally:
                temporary.unlink(missing_ok=True)
        except OSError as error:
            raise SourceError(f"{path} cannot be written: {error.strerror}") from error

    def exists(self, key: str) -> bool:
        """Return whether there is such a file."""
        return safe_path(self.root, key).is_file()
