"""The state of the folds after a whole job, which `compact` keeps beside the rows: a report of it need not read them.

A state is used only by the code that wrote it, for the rules' own parameters, and while all Parquet files are those that it
was folded from. Everything else reads the rows, which gives the same digits.
"""

from __future__ import annotations

import hashlib
import time
import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import sm_profiler
from sm_profiler._version import __version__
from sm_profiler.errors import SourceError
from sm_profiler.executors import Pool
from sm_profiler.formats.outcome import READ
from sm_profiler.processes import trim_heap
from sm_profiler.report.scaling.folding import fold_with
from sm_profiler.report.scaling.part import decode_slice, encode_slice, new_folds
from sm_profiler.report.scaling.put_away import put_away
from sm_profiler.rules.engine import Slice, run_sliced
from sm_profiler.source.profile import FileQuality, ProfileSource

QUIET_S = 3600.0  # after its last file, a job without an end marker counts as over
MAX_BYTES = 1 << 30  # of a state in memory
_CODE = ("formats", "rules", "report", "source")  # packages that a state depends on


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
    faults: list[tuple[str, str, int, str]]
    metadata: dict[str, list[dict[str, Any]]]


_KEPT, _BODY = msgspec.msgpack.Decoder(_Kept), msgspec.msgpack.Decoder(_Body)


@lru_cache(1)
def code_digest() -> str:
    """Return a digest of the code that a state depends on."""
    root = Path(sm_profiler.__file__).parent
    digest = hashlib.sha256(f"{__version__} {np.__version__}".encode())
    for package in _CODE:
        for file in sorted((root / package).rglob("*.py")):
            digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def is_over(source: ProfileSource) -> bool:
    """Return whether a job has ended, or has written nothing for so long that it probably has."""
    last_us = source.last_timestamp_us
    return last_us is not None and (source.finished or time.time() - last_us / 1e6 > QUIET_S)


def is_kept(source: ProfileSource) -> bool:
    """Return whether a profile in Parquet has a state that this code can use."""
    return _found(source) is not None


def keep(source: ProfileSource, pool: Pool | None = None) -> bytes | None:
    """Fold a profile in Parquet, and return the state as bytes for `write_state`.

    Args:
        source: the profile, of which nothing has been read.
        pool: workers that fold it.

    Returns:
        The bytes; None if a fold raised an error, or if the Parquet files cannot all be used.

    Raises:
        SourceError: the rows cannot be read.
    """
    files = _digest(source)
    if files is None:
        return None
    interval_us = new_folds({})[0].parameters.scan_interval_us
    whole = fold_with(source, pool, parameters={}, interval_us=interval_us) if pool is not None else None
    if whole is None:
        whole = run_sliced(source, lambda: new_folds({}), interval_us=interval_us, put_away=put_away)
    whole.folds[0].load_rules()
    if whole.broken or whole.folds[0].broken:
        return None
    faults = [
        (one.path, one.status, one.lost, one.reason) for one in source.quality() if one.lost or one.status != READ
    ]
    metadata = {path: list(records) for path, records in source.metadata_by_file().items()}
    body = msgspec.msgpack.encode(_Body(encode_slice(whole), faults, metadata))
    if len(body) > MAX_BYTES:
        return None
    return msgspec.msgpack.encode(_Kept(code_digest(), files, sorted(source.strays), zlib.compress(body)))


def load(source: ProfileSource) -> Slice | None:
    """Return the state that is kept with a profile, and have the source account for all files; None if there is none.

    Raises:
        SourceError: records were lost, and the source is strict.
    """
    kept = _found(source)
    if kept is None:
        return None
    try:
        unpack = zlib.decompressobj()
        body = _BODY.decode(unpack.decompress(kept.packed, MAX_BYTES))
        del kept
        if not unpack.eof:
            return None
        whole = decode_slice(body.state, {})
        body.state = b""
    except (zlib.error, msgspec.MsgspecError, SourceError, RecursionError, MemoryError):
        return None
    metadata = {path: tuple(records) for path, records in body.metadata.items()}
    source.adopt_all([FileQuality(*one) for one in body.faults], metadata)
    trim_heap()  # of what the state was unpacked from
    return whole


def _digest(source: ProfileSource) -> str | None:
    found: str | None = getattr(getattr(source, "storage", None), "digest", None)
    return found


def _found(source: ProfileSource) -> _Kept | None:
    """Return the state if it is one of this code and of these files."""
    files = _digest(source)
    data = getattr(source.storage, "read_state", bytes)() if files is not None else b""
    if not data:
        return None
    try:
        kept = _KEPT.decode(data)
    except msgspec.MsgspecError:
        return None
    is_valid = (kept.code, kept.files, kept.strays) == (code_digest(), files, sorted(source.strays))
    return kept if is_valid else None
