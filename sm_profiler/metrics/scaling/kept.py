"""The state of the folds after a whole job in Parquet, which the first report of it keeps: the next one need not read the rows.

It lies in the cache of this user on this machine, and never with the data, which others may write to. A state is used only
by the code that wrote it, for the rules' own parameters, and while all Parquet files are those that it was folded from.
Everything else reads the rows, which gives the same digits.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
import weakref
import zlib
from collections.abc import Callable
from contextlib import suppress
from copy import copy
from functools import lru_cache, partial
from pathlib import Path
from typing import IO, Any

import msgspec
import numpy as np

import sm_profiler
from sm_profiler.errors import SourceError
from sm_profiler.folding import Slice, Stored
from sm_profiler.formats.outcome import READ
from sm_profiler.metrics.scaling import codec
from sm_profiler.metrics.scaling.part import decode_slice, encode_slice, rule_state, version
from sm_profiler.processes import trim_heap
from sm_profiler.source.cache import OwnFolder
from sm_profiler.source.profile import FileQuality, ProfileSource


class _File:
    """A file without a name, which is closed once nothing is left to load from it."""

    def __init__(self) -> None:
        self.file: IO[bytes] = tempfile.TemporaryFile(prefix="sm-profiler-")  # noqa: SIM115 - see above
        weakref.finalize(self, self.file.close)

    def put(self, part: Any, state: dict[str, Any]) -> Stored:
        """Write the state of a rule or fold, and return what loads it."""
        data = codec.encode(state)
        at = self.file.tell()
        self.file.write(data)
        self.file.flush()
        empty = copy(part)
        for name in state:
            delattr(empty, name)
        return Stored(partial(self._load, empty, at, len(data)))

    def _load(self, empty: Any, at: int, size: int) -> Any:
        part = copy(empty)
        self.file.seek(at)
        vars(part).update(codec.decode(self.file.read(size)))
        self.file.seek(0, os.SEEK_END)
        return part


def put_away(state: Slice) -> Callable[[], Slice]:
    """Store a state in a file without a name; return a function that returns it, to be loaded part by part.

    Rules and folds are merged, written and loaded one after another, so that only one of them is in memory twice. What
    cannot be written stays in memory.
    """
    try:
        file = _File()
        report = state.load(0)
        for name in report.rules:
            report.rules[name] = file.put(report.rule(name), rule_state(report.rules[name]))
        for index in range(1, len(state.folds)):
            state.folds[index] = file.put(state.load(index), dict(vars(state.folds[index])))
    except (OSError, TypeError):
        state.loaded()
    return lambda: state


QUIET_S = 3600.0  # after its last file, a job without an end marker counts as over
_STATES = OwnFolder("sm-profiler-states", ".state", file_bytes=256 << 20, files=1000, total_bytes=1 << 30)
_CODE = ("formats", "folding.py", "rules", "metrics", "source")  # packages and modules that a state depends on


class _Kept(msgspec.Struct):
    """A state as it is stored.

    Attributes:
        code: digest of the code that wrote it.
        files: digest of the Parquet files that it was folded from.
        strays: files that were not read because of the time in their name.
        packed: compressed _Body.
    """

    code: str
    files: str
    strays: list[str]
    packed: bytes


class _Body(msgspec.Struct):
    """State of the folds, and the account of the files that were read: of those with faults, and all metadata."""

    state: bytes
    faults: list[FileQuality]
    metadata: dict[str, list[dict[str, Any]]]


_KEPT, _BODY = msgspec.msgpack.Decoder(_Kept), msgspec.msgpack.Decoder(_Body)


@lru_cache(1)
def code_digest() -> str:
    """Return a digest of the code that a state depends on."""
    root = Path(sm_profiler.__file__).parent
    digest = hashlib.sha256(f"{version()} {np.__version__}".encode())
    for file in code_files(root):
        digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def code_files(root: Path) -> list[Path]:
    """Return the files of the code that a state depends on."""
    return [file for name in _CODE for file in (sorted((root / name).rglob("*.py")) or [root / name])]


def is_over(source: ProfileSource) -> bool:
    """Return whether a job has ended, or has written nothing for so long that it probably has."""
    last_us = source.last_timestamp_us
    return last_us is not None and (source.finished or time.time() - last_us / 1e6 > QUIET_S)


def keep(source: ProfileSource, whole: Slice) -> None:
    """Keep the state of a job in Parquet that is over; what cannot be kept is folded again the next time.

    Args:
        source: the profile, all of whose rows have been read.
        whole: their state.
    """
    files = _digest(source)
    if files is None or not is_over(source):
        return
    whole.folds[0].load_rules()
    if whole.broken or whole.folds[0].broken:
        return
    faults = [each for each in source.quality() if each.lost or each.status != READ]
    metadata = {path: list(records) for path, records in source.metadata_by_file().items()}
    with suppress(TypeError, ValueError):  # numbers or texts that have no bytes
        body = msgspec.msgpack.encode(_Body(encode_slice(whole), faults, metadata))
        kept = _Kept(code_digest(), files, sorted(source.strays), zlib.compress(body))
        _STATES.write(_name(source), msgspec.msgpack.encode(kept))


def load(source: ProfileSource) -> Slice | None:
    """Return the state that is kept with a profile, and have the source account for all files; None if there is none.

    Raises:
        SourceError: records were lost, and the source is strict.
    """
    kept = _found(source)
    if kept is None:
        return None
    try:
        body = _BODY.decode(codec.unpacked(kept.packed))
        del kept
        whole = decode_slice(body.state, {})
        body.state = b""
    except (ValueError, msgspec.MsgspecError, SourceError, RecursionError, MemoryError):
        return None
    metadata = {path: tuple(records) for path, records in body.metadata.items()}
    source.adopt_all(body.faults, metadata)
    trim_heap()  # of what the state was unpacked from
    return whole


def _digest(source: ProfileSource) -> str | None:
    found: str | None = getattr(getattr(source, "storage", None), "digest", None)
    return found


def _name(source: ProfileSource) -> str:
    uri = source.storage.uri
    return uri if "://" in uri else os.path.realpath(uri)


def _found(source: ProfileSource) -> _Kept | None:
    """Return the state if it is one of this code and of these files."""
    files = _digest(source)
    data = _STATES.read(_name(source)) if files is not None else b""
    if not data:
        return None
    try:
        kept = _KEPT.decode(data)
    except msgspec.MsgspecError:
        return None
    is_valid = (kept.code, kept.files, kept.strays) == (code_digest(), files, sorted(source.strays))
    return kept if is_valid else None
