"""The last state of a job's page, kept on disk: a page that is opened again shows it while the job's files are read."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from sm_profiler._version import __version__
from sm_profiler.report.classes import Class
from sm_profiler.report.saved import SavedVerdict
from sm_profiler.serve.reading import local_folder
from sm_profiler.source.cache import cache_root

FOLDER = "sm-profiler-pages"
MAX_BYTES = 32 << 20  # of one job, uncompressed
MAX_FILES = 200  # the oldest go first
PRIVATE = 0o700


@attrs.frozen
class Remembered:
    """The state that is kept of a job.

    Attributes:
        parts: HTML of the page's parts in their order.
        spark: the step times of the list of jobs.
        files: number of files read.
        at: when it was kept, seconds since the epoch.
        verdict: class and headline of its verdict; None without one.
    """

    parts: Mapping[str, str]
    spark: tuple[float, ...]
    files: int
    at: float
    verdict: SavedVerdict | None = None


def remember(where: str, state: Remembered) -> None:
    """Keep a job's state; a folder that cannot be written to is left alone."""
    content = attrs.asdict(state, recurse=False) | {"version": __version__, "place": _place(where)}
    content["verdict"] = None
    if state.verdict is not None:
        content["verdict"] = {"class": state.verdict.kind.name, "headline": state.verdict.headline}
    text = json.dumps(content).encode()
    path = _path(where)
    if path is None or len(text) > MAX_BYTES:
        return
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=PRIVATE)
        if not _is_own(path.parent):
            return
        descriptor, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(zlib.compress(text, 1))
        Path(temporary).replace(path)
        kept = sorted(path.parent.iterdir(), key=lambda one: one.stat().st_mtime)
        for old in kept[:-MAX_FILES]:
            old.unlink()


def recall(where: str) -> Remembered | None:
    """Return what was kept of a job by this user and this version; None if there is nothing, or it is damaged."""
    path = _path(where)
    if path is None:
        return None
    try:
        if not _is_own(path.parent) or not _is_own(path):
            return None
        unpacker = zlib.decompressobj()
        found: Any = json.loads(unpacker.decompress(path.read_bytes(), MAX_BYTES))
        if found["version"] != __version__ or found["place"] != _place(where):
            return None
        parts = {str(key): str(html) for key, html in found["parts"].items()}
        spark, verdict = tuple(float(one) for one in found["spark"]), None
        if found["verdict"] is not None:
            verdict = SavedVerdict(Class[found["verdict"]["class"]], str(found["verdict"]["headline"]))
        return Remembered(parts, spark, int(found["files"]), float(found["at"]), verdict)
    except (OSError, zlib.error, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _is_own(path: Path) -> bool:
    """Return whether no other user can have written a file or folder: its content becomes HTML."""
    found = path.lstat()
    return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not path.is_symlink()


def _path(where: str) -> Path | None:
    root = cache_root()
    if root is None:
        return None
    folder = local_folder(where)
    name = str(folder.resolve()) if folder else where
    return root.parent / FOLDER / f"{hashlib.sha256(os.fsencode(name)).hexdigest()[:24]}.json.z"


def _place(where: str) -> list[int]:
    """Return what distinguishes a folder from a later one of the same name."""
    folder = local_folder(where)
    if folder is None:
        return []
    found = folder.stat()
    return [found.st_dev, found.st_ino]
