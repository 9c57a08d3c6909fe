"""Some files of a profile, for another process: how to name them, and a source of only these."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

from sm_profiler.errors import SourceError
from sm_profiler.formats.layout import METADATA_SUFFIX
from sm_profiler.source.opening import open_parquet
from sm_profiler.source.profile import Options, ProfileSource
from sm_profiler.storage import FileInfo, LocalStorage, Storage, open_storage

Listed = tuple[str, int, float, str]  # key, size, mtime, etag


class ListedStorage:
    """A storage of which only some files are seen."""

    digest = contents = None  # what is kept for all files is not for some

    def __init__(self, base: Storage, infos: Iterable[FileInfo]) -> None:
        self._base, self._infos = base, sorted(infos, key=lambda info: info.key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._base, name)

    def list(self, prefix: str = "", start_after: str | None = None) -> Iterator[FileInfo]:
        """Yield these files."""
        for info in self._infos:
            if info.key.startswith(prefix) and info.key > (start_after or ""):
                yield info


def place_of(source: ProfileSource) -> tuple[str, str | None]:
    """Return the location that other processes open, and the job of a profile in Parquet.

    Raises:
        SourceError: other processes cannot open it.
    """
    storage: Any = source.storage
    job = getattr(storage, "job", None)
    return shared_location(storage.base if job is not None else storage), job


def shared_location(storage: Storage) -> str:
    """Return the location of a storage that other processes open.

    Raises:
        SourceError: other processes cannot open it.
    """
    if isinstance(storage, LocalStorage):
        return os.path.abspath(storage.uri)  # links stay as they are named
    if not str(storage.uri).startswith("s3://"):
        raise SourceError(f"{storage.uri} cannot be opened by other processes: use a folder or an s3:// URI")
    return storage.uri


def listed(source: ProfileSource, infos: Iterable[FileInfo]) -> list[Listed]:
    """Return files as data, with those with the times of detailed traces."""
    beside = [info for info in source.other_files if info.key.endswith(METADATA_SUFFIX)]
    return [(info.key, info.size, info.mtime, info.etag) for info in (*infos, *beside)]


def open_listed(uri: str, job: str | None, files: Iterable[Listed]) -> ProfileSource:
    """Open some files of a profile, in the process that reads them.

    Raises:
        SourceError: the location cannot be reached.
    """
    base: Any = open_storage(uri) if job is None else open_parquet(open_storage(uri), job)
    if job is not None:
        base.load()
    infos = [FileInfo(key, size, mtime, etag) for key, size, mtime, etag in files]
    return ProfileSource(ListedStorage(base, infos), Options(cache=False, processes=1, progress=False))
