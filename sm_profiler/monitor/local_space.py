"""The space that a profile takes on the local disk: a limit, and removal of what is uploaded."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs

from sm_profiler.errors import SourceError
from sm_profiler.formats.layout import END_MARKERS, FRAMEWORK, IGNORED_FOLDER, SYSTEM, is_ignored
from sm_profiler.monitor.place import EARLIER
from sm_profiler.printable import logger_for
from sm_profiler.settings import LOCAL_MAX
from sm_profiler.storage import FileInfo, LocalStorage

logger = logger_for("sm_profiler")

DEFAULT_BYTES, LEAST_DEFAULT_BYTES = 20 * 10**9, 10**9
SHARE_OF_DISK = 10  # by default, at most this fraction
CHECK_SECONDS = 60.0
KEPT = 0.9  # share of the limit that is left, so that not every check removes something


def limit_of(root: Path, environment: Mapping[str, str] = os.environ) -> int:
    """Return the limit in bytes; 0 for none. A value that is no size is replaced by the default."""
    given: int | None = LOCAL_MAX.read_or_default(environment)
    if given is not None:
        return given
    try:
        share = shutil.disk_usage(root).total // SHARE_OF_DISK
    except OSError:
        share = DEFAULT_BYTES
    return min(DEFAULT_BYTES, max(share, LEAST_DEFAULT_BYTES))


@attrs.define(eq=False)
class LocalSpace:
    """Keeps a profile's folder within its limit.

    Uploaded files are removed first, then those of earlier jobs in the same folder, then the oldest of this job. What no
    bucket has is emptied instead of removed, so that reports count it.

    Attributes:
        root: the profile's folder.
        limit: bytes; 0 for none.
        deletes: remove files as soon as they are uploaded.
        take_uploaded: given a file, returns whether it is uploaded, and forgets it if it is.
        lost: number of files that were emptied.
        lost_bytes: their size.
    """

    root: Path
    limit: int
    deletes: bool = False
    take_uploaded: Callable[[FileInfo], bool] = lambda _: False
    lost: int = 0
    lost_bytes: int = 0

    def check(self) -> None:
        """Remove what is due."""
        earlier = self._files(f"{IGNORED_FOLDER}/{EARLIER}/")
        own = [info for folder in (SYSTEM, FRAMEWORK) for info in self._files(f"{folder}/")]
        total = sum(info.size for info in (*earlier, *own))
        goal = self.limit * KEPT if self.limit and total > self.limit else float("inf")
        kept = []
        for info in own:
            if is_ignored(info.key) or info.key in END_MARKERS or not info.size:
                continue
            if (self.deletes or total > goal) and self.take_uploaded(info):
                total -= self._remove(info)
            else:
                kept.append(info)
        lost = self.lost
        for info in (*earlier, *kept):
            if total <= goal:
                break
            total -= self._empty(info) if info.size else 0
        if self.lost > lost and not lost:
            logger.warning(
                "sm-profiler: the profile in %s has reached its limit of %.1f GB (%s): the oldest files are emptied",
                self.root, self.limit / 1e9, LOCAL_MAX.name,
            )  # fmt: skip

    def _files(self, prefix: str) -> list[FileInfo]:
        """Return the files of a folder, the oldest first."""
        try:
            found = list(LocalStorage(self.root).list(prefix))
        except SourceError:
            return []
        return sorted(found, key=lambda info: (info.mtime, info.key))

    def _remove(self, info: FileInfo) -> int:
        with contextlib.suppress(OSError):
            (self.root / info.key).unlink()
            return info.size
        return 0

    def _empty(self, info: FileInfo) -> int:
        """Empty a file without following links."""
        with contextlib.suppress(OSError):
            os.close(os.open(self.root / info.key, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK))
            self.lost += 1
            self.lost_bytes += info.size
            return info.size
        return 0
