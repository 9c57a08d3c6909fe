"""The part of a Parquet footer that describes the files that its rows come from."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import msgspec

from sm_profiler.errors import SourceError
from sm_profiler.formats.bounds import check_json
from sm_profiler.formats.outcome import Outcome
from sm_profiler.formats.trace_rows import Key, LooseEnd, OpenEvent
from sm_profiler.source.item_table import Item
from sm_profiler.storage import FileInfo

VERSION = 1  # of the schema; docs/parquet.md describes it
KEY = b"sm_profiler"
MAX_BYTES = 64 << 20  # unpacked
FREE_BYTES, MAX_TIMES = 64 << 10, 16  # the same, in relation to the packed header: accounts of files pack to a tenth


class SourceFile(msgspec.Struct):
    """A file of the profile, and where its rows are.

    Attributes:
        key, size, etag, mtime: the file as it was listed.
        at_us, start_us: as in `Item`.
        group: index of the row group that holds its rows; files of a group follow each other.
        rows: number of its rows.
        joined: number of these, the first, that began in earlier files; a reader joins them again.
        outcome: status, lost records and reason of reading it.
        metadata: sm-profiler's own records in it, as JSON; see `records`.
        ends, begins: ends and begins of events without a counterpart in it.
    """

    key: str
    size: int
    etag: str
    mtime: float
    at_us: int
    start_us: int
    group: int
    rows: int
    joined: int = 0
    outcome: tuple[str, int, str] = ("read", 0, "")
    metadata: msgspec.Raw = msgspec.Raw(b"[]")
    ends: tuple[tuple[Key, float, str], ...] = ()
    begins: tuple[tuple[Key, tuple[str, str, int, int], float, str], ...] = ()

    @property
    def info(self) -> FileInfo:
        return FileInfo(self.key, self.size, self.mtime, self.etag)

    @property
    def loose(self) -> tuple[tuple[LooseEnd, ...], tuple[OpenEvent, ...]]:
        """Its ends and begins without a counterpart."""
        return tuple(LooseEnd(*each) for each in self.ends), tuple(OpenEvent(*each) for each in self.begins)

    def is_of(self, item: Item) -> bool:
        """Return whether the rows are those of a file as it is now."""
        return (self.info, self.at_us, self.start_us) == (item.info, item.at_us, item.start_us)

    @property
    def records(self) -> tuple[dict[str, Any], ...]:
        """sm-profiler's own records in it; none if they are none."""
        text = bytes(self.metadata)
        try:
            check_json(text, len(text) // 4 + 2)  # of records, it is a tenth
            return _RECORDS.decode(text)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return ()

    @property
    def result(self) -> Outcome:
        return Outcome(*self.outcome)


class Header(msgspec.Struct):
    """Description of a Parquet file in its footer.

    Attributes:
        version: of the schema.
        origin: location of the profile.
        files: the files in the order of their rows.
    """

    version: int
    origin: str
    files: list[SourceFile] = []


class _Version(msgspec.Struct):
    version: int


_RECORDS = msgspec.json.Decoder(tuple[dict[str, Any], ...])
_HEADER, _VERSION = msgspec.json.Decoder(Header), msgspec.json.Decoder(_Version)


def encode(header: Header) -> bytes:
    """Return a header as text, as other readers take these values for text."""
    return base64.b64encode(zlib.compress(msgspec.json.encode(header)))


def decode(data: bytes) -> Header:
    """Return a header.

    Raises:
        ValueError: it is damaged.
        SourceError: a newer version wrote it.
    """
    try:
        unpack = zlib.decompressobj()
        most = min(MAX_BYTES, FREE_BYTES + MAX_TIMES * len(data))
        text = unpack.decompress(base64.b64decode(data, validate=True), most)
        if not unpack.eof:
            raise ValueError("larger than a header can be")
        version = _VERSION.decode(text).version
        if version > VERSION:
            raise SourceError(
                f"written with version {version} of the schema, which is newer than this one ({VERSION}): update sm-profiler"
            )
        header = _HEADER.decode(text)
    except (zlib.error, msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from error
    outcomes: dict[tuple[str, int, str], tuple[str, int, str]] = {}
    for file in header.files:  # a long job has a hundred thousand, most of them read as they were
        file.outcome = outcomes.setdefault(file.outcome, file.outcome)
    return header
