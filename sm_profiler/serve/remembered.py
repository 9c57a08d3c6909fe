"""The last state of a job's page, kept on disk: a page that is opened again shows it while the job's files are read."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

import attrs

from sm_profiler._version import __version__
from sm_profiler.report.classes import Class
from sm_profiler.report.saved import SavedVerdict
from sm_profiler.serve.reading import local_folder
from sm_profiler.source.own_folder import OwnFolder

MAX_BYTES = 32 << 20  # of one job, uncompressed
_PAGES = OwnFolder("sm-profiler-pages", ".json.z", file_bytes=MAX_BYTES, files=200, total_bytes=1 << 30)


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
    if len(text) <= MAX_BYTES:
        _PAGES.write(_name(where), zlib.compress(text, 1))


def recall(where: str) -> Remembered | None:
    """Return what was kept of a job by this user and this version; None if there is nothing, or it is damaged."""
    try:
        unpacker = zlib.decompressobj()
        found: Any = json.loads(unpacker.decompress(_PAGES.read(_name(where)), MAX_BYTES))
        if found["version"] != __version__ or found["place"] != _place(where):
            return None
        parts = {str(key): str(html) for key, html in found["parts"].items()}
        spark, verdict = tuple(float(one) for one in found["spark"]), None
        if found["verdict"] is not None:
            verdict = SavedVerdict(Class[found["verdict"]["class"]], str(found["verdict"]["headline"]))
        return Remembered(parts, spark, int(found["files"]), float(found["at"]), verdict)
    except (OSError, zlib.error, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _name(where: str) -> str:
    folder = local_folder(where)
    return str(folder.resolve()) if folder else where


def _place(where: str) -> list[int]:
    """Return what distinguishes a folder from a later one of the same name."""
    folder = local_folder(where)
    if folder is None:
        return []
    found = folder.stat()
    return [found.st_dev, found.st_ino]
