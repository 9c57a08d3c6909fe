"""Files with tables of times, as pieces of columns: CSV, JSON lines and Parquet, bounded by what is stored."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice, zip_longest
from typing import Any

import attrs

from sm_profiler.errors import SourceError
from sm_profiler.formats.bounds import MAX_FOOTER_OBJECTS, check_groups
from sm_profiler.formatting import natural_key
from sm_profiler.printable import printable
from sm_profiler.storage import open_storage

SUFFIXES = (".csv", ".tsv", ".parquet", ".jsonl", ".ndjson")
MAX_BYTES = 1 << 30  # of a table as stored
UNPACKED_BYTES, UNPACKED_TIMES = 16 << 20, 64  # a gzip file may unpack to so much, or to so many times its size
MAX_COLUMNS, MAX_COLUMN = 10_000, 300  # columns, and characters of the name of one that is read
PIECE_ROWS, PIECE_CELLS, PIECE_CHARACTERS = 2048, 1 << 18, 4 << 20  # rows that exist as Python objects at a time
GZIP = b"\x1f\x8b"


@attrs.frozen(eq=False)
class Piece:
    """Some rows.

    Attributes:
        count: their number.
        column: returns a column by its name; None, or empty text, where a row lacks it.
    """

    count: int
    column: Callable[[str], Sequence[Any]]


@attrs.frozen(eq=False)
class TableFile:
    """A table: the names of its columns, and its rows in pieces, which can be read once."""

    head: list[str]
    pieces: Iterator[Piece]


def tables_in(where: str) -> dict[str, str]:
    """Return the tables of a folder that holds nothing else, as each rank may write one: the rank by its name → path."""
    try:
        found = [entry for entry in os.scandir(where) if not entry.name.startswith(".")]
        if not all(suffix_of(entry.name) in SUFFIXES and entry.is_file() for entry in found):
            return {}
    except (OSError, ValueError):  # no folder, or an address
        return {}
    paths = sorted((entry.path for entry in found), key=natural_key)
    stems = [os.path.basename(path).partition(".")[0] for path in paths]
    for name in (r".*?(\d+)\D*", r"(.*)"):  # its last number, or all of it
        ranks = [match[1] if (match := re.fullmatch(name, stem)) else "" for stem in stems]
        if all(ranks) and len(set(ranks)) == len(ranks):
            return dict(zip(ranks, paths, strict=True))
    return dict(zip(map(os.path.basename, paths), paths, strict=True))


def suffix_of(name: str) -> str:
    """Return the suffix of a file's name without that of gzip."""
    return os.path.splitext(name.lower().removesuffix(".gz"))[1]


def joined(files: Mapping[str, TableFile], rank: str) -> TableFile:
    """Return the rows of several tables as one.

    Args:
        files: the name of each table's rank → the table.
        rank: name of a new column with the rank; "" for none.
    """
    head = list(dict.fromkeys(key for file in files.values() for key in file.head))

    def column(name: str, file: TableFile, piece: Piece, key: str) -> Sequence[Any]:
        if key == rank and rank:
            return [name] * piece.count
        return piece.column(key) if key in file.head else [None] * piece.count

    pieces = (
        Piece(piece.count, partial(column, name, file, piece)) for name, file in files.items() for piece in file.pieces
    )
    return TableFile([*head, *([rank] if rank else [])], pieces)


def stored(name: str) -> bytes:
    """Return a file.

    Raises:
        SourceError: it cannot be read, or is too large.
    """
    place, _, key = name.rpartition("/")
    storage = open_storage(place or ("/" if name.startswith("/") else "."))
    data = storage.read(key, 0, MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise SourceError(f"{printable(name)}: larger than {MAX_BYTES >> 20} MiB; cut the table, or aggregate it first")
    return data


def lines(data: bytes, name: str) -> Iterator[str]:
    """Yield the lines of a text, plain or compressed with gzip, which is unpacked as it is read.

    Raises:
        SourceError: before the first line: it is damaged, or unpacks to too much; later: a line has too many values.
    """
    is_packed = data[:2] == GZIP
    text = _unpacked(data, name) if is_packed else io.TextIOWrapper(io.BytesIO(data), "utf-8", "replace", newline="\n")
    for number, line in enumerate(text, 1):
        # each value may become an object of a hundred bytes; a short line is not counted
        if len(line) > PIECE_CELLS and sum(map(line.count, ",;\t{[")) > PIECE_CELLS:
            raise SourceError(f"{printable(name)}: line {number} has more values than a row of a table")
        yield line


def _unpacked(data: bytes, name: str) -> Iterator[str]:
    left = limit = min(MAX_BYTES, max(UNPACKED_BYTES, UNPACKED_TIMES * len(data)))
    file = gzip.GzipFile(fileobj=io.BytesIO(data))
    try:
        while piece := file.read(1 << 20):  # unpacking twice is cheap, reading rows in vain is not
            left -= len(piece)
            if left < 0:
                raise SourceError(
                    f"{printable(name)}: unpacks to more than {limit >> 20} MiB; unpack it, or cut the table"
                )
        file.seek(0)
        for line in file:
            yield line.decode("utf-8", "replace")
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"{printable(name)}: damaged gzip data: {error}") from None


def _checked(columns: Sequence[str], name: str) -> Sequence[str]:
    """Return the names of columns.

    Raises:
        SourceError: they are too many.
    """
    if len(columns) > MAX_COLUMNS:
        raise SourceError(f"{printable(name)}: {len(columns):,} columns; a table of times has at most {MAX_COLUMNS:,}")
    return columns


def read_csv(data: bytes, name: str) -> TableFile:
    """Return a CSV table."""
    text = lines(data, name)
    first = comment = next(text, "")
    while first.startswith("#"):
        first, comment = next(text, ""), first
    if first != comment and any(cell[:1].isdigit() for cell in re.split(r"[,;\t ]+", first.strip())):
        text, first = chain([first], text), comment.lstrip("# ")  # as numpy writes it
    sign = max(",;\t", key=first.count)
    rows: Iterator[list[str]] = csv.reader(chain([first], text), delimiter=sign)
    if sign != ",":  # then the comma may be that of decimals
        rows = ([cell.replace(",", ".") if cell[-1:].isdigit() else cell for cell in row] for row in rows)
    cells = _checked([cell for row in _some(rows, 1, None, name) for cell in row], name)
    head = [cell.removeprefix("\ufeff").strip() for cell in cells]
    at = {key: place for place, key in enumerate(head) if 0 < len(key) <= MAX_COLUMN}
    return TableFile(list(at), _csv_pieces(rows, at, len(head), name))


def _csv_pieces(rows: Iterator[list[str]], at: dict[str, int], width: int, name: str) -> Iterator[Piece]:
    count = min(PIECE_ROWS, PIECE_CELLS // max(width, 1) + 1)
    while held := _some(rows, count, width, name):
        full = [row for row in held if row]
        columns = list(zip_longest([""] * width, *full, fillvalue=""))  # the first row pads the others
        yield Piece(len(full), lambda key, columns=columns: columns[at[key]][1:])  # type: ignore[misc]


def _some(rows: Iterator[list[str]], count: int, width: int | None, name: str) -> list[list[str]]:
    try:
        return [row[:width] for row in islice(rows, count)]
    except csv.Error as error:
        raise SourceError(f"{printable(name)}: not a CSV table: {error}") from None


def read_json_lines(data: bytes, name: str) -> TableFile:
    """Return a table of JSON lines, whose columns are those of the first rows."""
    pieces = _json_pieces(data, name)
    first = next(pieces, [])
    keys = _checked(list(dict.fromkeys(key for row in first for key in row)), name)
    head = [key for key in keys if len(key) <= MAX_COLUMN]
    columns = (
        Piece(len(rows), lambda key, rows=rows: [row.get(key) for row in rows])  # type: ignore[misc]
        for rows in chain([first], pieces)
    )
    return TableFile(head, columns)


def _json_pieces(data: bytes, name: str) -> Iterator[list[dict[str, Any]]]:
    held: list[dict[str, Any]] = []
    size = 0
    for number, line in enumerate(lines(data, name), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                raise SourceError(f"{printable(name)}: line {number} is not JSON") from None
            if not isinstance(row, dict):
                raise SourceError(f"{printable(name)}: line {number} is not an object")
            held.append(row)
            size += len(line)
        if len(held) == PIECE_ROWS or size > PIECE_CHARACTERS:
            yield held
            held, size = [], 0
    if held:
        yield held


def read_parquet(data: bytes, name: str, texts: Callable[[str], bool]) -> TableFile:
    """Return a Parquet table.

    Args:
        data: the file.
        name: its name, for messages.
        texts: whether a column holds names; of the others only numbers are read.

    Raises:
        SourceError: it is damaged, or holds more than tables do in as many bytes.
    """
    try:
        import pyarrow as pa  # an extra
        import pyarrow.parquet as pq
    except ImportError:
        raise SourceError("a Parquet table needs pyarrow: pip install 'sm-profiler[analysis]'") from None
    damage = (pa.ArrowException, OSError, ValueError, TypeError, KeyError, OverflowError)
    try:
        file = pq.ParquetFile(io.BytesIO(data), thrift_container_size_limit=MAX_FOOTER_OBJECTS)
        kinds = {field.name: field.type for field in file.schema_arrow}
        named = [key for key in _checked(file.schema_arrow.names, name) if len(key) <= MAX_COLUMN]
        head = [key for key in dict.fromkeys(named) if not pa.types.is_nested(kinds[key])]
        file = pq.ParquetFile(
            io.BytesIO(data), thrift_container_size_limit=MAX_FOOTER_OBJECTS,
            read_dictionary=[key for key in head if texts(key)],
        )  # fmt: skip
        check_groups(memoryview(data), head)
    except damage as error:
        raise SourceError(f"{printable(name)}: not a Parquet file: {printable(str(error))[:200]}") from None

    def column(group: int, key: str) -> Sequence[Any]:
        kind = kinds[key]
        is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_timestamp(kind)
        if not is_number and not texts(key):
            return [None] * file.metadata.row_group(group).num_rows
        try:
            read = file.read_row_group(group, columns=[key], use_threads=False).column(0).combine_chunks()
            if len(read) != file.metadata.row_group(group).num_rows:
                raise ValueError(f"column {key} has not as many values as rows")
            if pa.types.is_dictionary(read.type):
                values = read.dictionary.to_pylist()
                return [None if code is None else values[code] for code in read.indices.to_pylist()]
            found: Sequence[Any] = read.to_numpy(zero_copy_only=False) if is_number else read.to_pylist()
        except (*damage, IndexError) as error:
            raise SourceError(f"{printable(name)}: damaged: {printable(str(error))[:200]}") from None
        return found

    def pieces() -> Iterator[Piece]:
        for group in range(file.metadata.num_row_groups):
            count = file.metadata.row_group(group).num_rows
            yield Piece(count, lambda key, group=group: column(group, key))  # type: ignore[misc]

    return TableFile(head, pieces())
