"""Rows of earlier runs, in a Parquet file: a job whose files have not changed is not read again.

A row is kept without prices, under the location of its job and a text that changes if one of its files does.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Mapping

import attrs
import msgspec

from sm_profiler._version import __version__
from sm_profiler.errors import SourceError
from sm_profiler.fleet.model import FleetJob
from sm_profiler.formats.parquet_pages import MAX_FOOTER_OBJECTS, check_groups
from sm_profiler.printable import one_line, printable
from sm_profiler.storage import MissingFileError, Storage

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as missing:
    raise SourceError("a report on many jobs needs pyarrow: pip install 'sm-profiler[analysis]'") from missing

NAME = "fleet-index.parquet"
MAX_BYTES = 1 << 30
FORMAT = b"sm_profiler.fleet"  # key of the file's metadata: the version that judged the rows


@attrs.frozen
class Entry:
    """A row as it was read.

    Attributes:
        identity: text that changes if a file of the job does.
        row: the row without prices.
        modified: last change of the job's description, for jobs of an account; "" otherwise.
        settled: no file of the job is expected any more.
    """

    identity: str
    row: FleetJob
    modified: str = ""
    settled: bool = False


COLUMNS = ("job", "identity", "modified", "settled", "row")
_PACK = msgspec.msgpack.Encoder()
_UNPACK = msgspec.msgpack.Decoder(FleetJob)


def read_index(storage: Storage, key: str = NAME) -> tuple[dict[str, Entry], str]:
    """Return the entries by job, and a sentence if there is an index that cannot be used."""
    try:
        data = storage.read(key, 0, MAX_BYTES)
    except MissingFileError:
        return {}, ""
    where = printable(f"{storage.uri}/{key}")
    try:
        return _entries(data), ""
    except _OtherVersionError:
        return {}, f"{where} was written by another version of sm-profiler: all jobs are read again."
    # Arrow raises errors of many kinds on damaged files
    except Exception as error:
        return {}, f"{where} is damaged and is made anew ({one_line(error)[:100]})."


class _OtherVersionError(Exception):
    """The index was written by another version, whose verdicts may differ."""


def _entries(data: bytes) -> dict[str, Entry]:
    file = pq.ParquetFile(
        io.BytesIO(data), page_checksum_verification=True, thrift_container_size_limit=MAX_FOOTER_OBJECTS
    )
    if (file.schema_arrow.metadata or {}).get(FORMAT) != __version__.encode():
        raise _OtherVersionError
    check_groups(file.metadata, memoryview(data), (*COLUMNS, "crc"), repeating=False)
    found = {}
    for batch in file.iter_batches(1024):
        columns = (batch.column(name).to_pylist() for name in (*COLUMNS, "crc"))
        for job, identity, modified, settled, row, crc in zip(*columns, strict=True):
            if crc != _crc(job, identity, modified, row):
                raise ValueError("a checksum is wrong")
            found[job] = Entry(identity, _UNPACK.decode(row), modified, settled)
    return found


def write_index(storage: Storage, entries: Mapping[str, Entry], key: str = NAME) -> None:
    """Write the entries in one piece: a run beside this one sees the old index or the new one.

    Raises:
        SourceError: it cannot be written.
    """
    rows = []
    for job, entry in entries.items():
        place, identity, row = _text(job), _text(entry.identity), _PACK.encode(entry.row)
        rows.append((place, identity, entry.modified, entry.settled, row, _crc(place, identity, entry.modified, row)))
    kinds = (pa.string(), pa.string(), pa.string(), pa.bool_(), pa.binary(), pa.int64())
    columns = zip(*rows, strict=True) if rows else ((),) * len(kinds)
    arrays = [pa.array(list(values), kind) for values, kind in zip(columns, kinds, strict=True)]
    table = pa.table(arrays, names=[*COLUMNS, "crc"], metadata={FORMAT: __version__})
    out = io.BytesIO()
    pq.write_table(table, out, compression="zstd", write_page_checksum=True, use_dictionary=False)
    storage.write(key, out.getvalue())


def _crc(job: str, identity: str, modified: str, row: bytes) -> int:
    """Return a checksum: those of Parquet's pages leave out their headers."""
    return zlib.crc32(row, zlib.crc32(f"{job}\0{identity}\0{modified}".encode()))


def _text(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
