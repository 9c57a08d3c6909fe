"""Rows of earlier runs, so that a job whose files have not changed is not read again.

A row is kept without prices, under the location of its job, with a text that changes if one of its files does. The index
is one compressed file of MessagePack, in the user's folder or bucket: its checksum finds damage, and nothing in it names
code.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import msgspec

from sm_profiler._version import __version__
from sm_profiler.fleet.model import FleetJob
from sm_profiler.printable import one_line, printable
from sm_profiler.storage import MissingFileError, Storage

NAME = "fleet-index.bin"
MAX_BYTES = 1 << 30  # of the file, and of its content


class Entry(msgspec.Struct, frozen=True):
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


class _Index(msgspec.Struct):
    """Content of the file; other versions of sm-profiler may reach other verdicts, and have other rows."""

    version: str
    entries: msgspec.Raw


def read_index(storage: Storage, key: str = NAME) -> tuple[dict[str, Entry], str]:
    """Return the entries by job, and a sentence if there is an index that cannot be used."""
    where = printable(f"{storage.uri}/{key}")
    try:
        data = zlib.decompressobj().decompress(storage.read(key, 0, MAX_BYTES), MAX_BYTES)
        index = msgspec.msgpack.decode(data, type=_Index)
        if index.version != __version__:
            return {}, f"{where} was written by another version of sm-profiler: all jobs are read again."
        return msgspec.msgpack.decode(index.entries, type=dict[str, Entry]), ""
    except MissingFileError:
        return {}, ""
    except (zlib.error, msgspec.MsgspecError, ValueError) as error:
        return {}, f"{where} is damaged and is made anew ({one_line(error)[:100]})."


def write_index(storage: Storage, entries: Mapping[str, Entry], key: str = NAME) -> None:
    """Write the entries in one piece: a simultaneous run sees the old index or the new one."""
    encoder = msgspec.msgpack.Encoder()
    # names of files need not be Unicode
    kept = {
        _text(job): msgspec.structs.replace(entry, identity=_text(entry.identity)) for job, entry in entries.items()
    }
    content = encoder.encode(_Index(__version__, msgspec.Raw(encoder.encode(kept))))
    storage.write(key, zlib.compress(content, 1))


def _text(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
