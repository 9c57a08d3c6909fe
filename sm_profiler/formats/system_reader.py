"""System metric files: bytes to columns."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Any

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats.columns import Floats, Numbering
from sm_profiler.formats.outcome import CHUNK_BYTES, LAST_US, MAX_RECORD_BYTES, REFUSED, Outcome, Tally, clean, objects

# A file describes one node; rules take time for each pair of nodes, and for each metric of each of them.
MAX_NODES = 8
MAX_METRICS = 100_000
FAR_S = 86_400.0  # a clock that was not set yet is years away; a job with such a row would be years long

Head = tuple[str, str, str, str]  # type, name, dimension, node

_HEAD = attrgetter("type", "name", "dimension", "node")
_TIMESTAMP, _VALUE = attrgetter("timestamp"), attrgetter("value")


@attrs.frozen(eq=False)
class SystemRows:
    """The rows of one file.

    Attributes:
        timestamp, value: as in SystemColumns.
        head: int32, index into `heads` of each row.
        heads: (type, name, dimension, node).
    """

    timestamp: Floats
    value: Floats
    head: NDArray[np.int32]
    heads: tuple[Head, ...]


class _Record(msgspec.Struct, gc=False):
    type: str = msgspec.field(name="Type")
    value: float = msgspec.field(name="Value")
    timestamp: float = msgspec.field(name="Timestamp")
    name: str | None = msgspec.field(name="Name", default=None)
    dimension: str | None = msgspec.field(name="Dimension", default=None)
    node: str | None = msgspec.field(name="NodeId", default=None)


_DECODER = msgspec.json.Decoder(_Record)


def read_system(data: bytes, node: str, of_us: float | None = None) -> tuple[SystemRows, Outcome]:
    """Read a file of system metrics.

    Args:
        node: the node in the file's name, for records that name none.
        of_us: the minute in the file's name, microseconds since the epoch; rows far from it have a wrong time.

    Returns:
        Its rows in their order, and the outcome. No content of a file raises an error.
    """
    tally = Tally()
    if not data.strip():
        tally.mend("empty")
        nothing = SystemRows(np.empty(0), np.empty(0), np.empty(0, np.int32), ())
        return nothing, attrs.evolve(tally.close(0), status=REFUSED)
    heads = Numbering()
    parts = [_part(records, heads) for records in _records(data, tally)]
    timestamp, value, head = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    table: Any = tuple((kind, name or "", dimension or "", on or node) for kind, name, dimension, on in heads)
    return _within_limits(SystemRows(timestamp, value, head, table), tally, of_us)


def _records(data: bytes, tally: Tally) -> Iterator[list[_Record]]:
    at = 0
    while at < len(data):
        end = len(data)
        if at + CHUNK_BYTES < end:
            border = data.rfind(b"\n{", at, at + CHUNK_BYTES)
            if border < 0:
                border = data.find(b"\n{", at + CHUNK_BYTES - 1)
            end = border + 1 or end
        if end - at > MAX_RECORD_BYTES:
            tally.drop("a line that is too long")
            at = end
            yield []
            continue
        piece = data if end - at == len(data) else data[at:end]
        try:
            yield _DECODER.decode_lines(piece)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            yield _salvage(piece, tally)
        at = end


def _salvage(data: bytes, tally: Tally) -> list[_Record]:
    records = []
    for item in objects(clean(data, tally), tally):
        try:
            records.append(_DECODER.decode(item))
        except (msgspec.MsgspecError, ValueError, RecursionError):  # damaged files only
            tally.drop("no measurement of a known form")
    if not records and not tally.dropped:
        tally.mend("no records")
    return records


def _part(records: list[_Record], heads: Numbering) -> tuple[Floats, Floats, NDArray[np.int32]]:
    count = len(records)
    head = np.fromiter(map(heads.__getitem__, map(_HEAD, records)), np.int32, count)
    timestamp = np.fromiter(map(_TIMESTAMP, records), np.float64, count)
    return timestamp, np.fromiter(map(_VALUE, records), np.float64, count), head


def _within_limits(rows: SystemRows, tally: Tally, of_us: float | None) -> tuple[SystemRows, Outcome]:
    """Return the rows whose time and value are in range, up to the limits of a file, and the file's outcome.

    Times are in range if they are within a day of the minute in the file's name, `of_us`.
    """
    kept = _heads_within_limits(rows.heads)
    if not kept.all():
        chosen = kept[rows.head]
        tally.drop(f"more than {MAX_NODES} nodes or {MAX_METRICS} metrics", int((~chosen).sum()))
        number = (np.cumsum(kept) - 1).astype(np.int32)
        heads = tuple(head for head, keep in zip(rows.heads, kept.tolist(), strict=True) if keep)
        rows = SystemRows(rows.timestamp[chosen], rows.value[chosen], number[rows.head[chosen]], heads)
    good = (rows.timestamp >= 0) & (rows.timestamp < LAST_US / 1e6) & np.isfinite(rows.value)
    if not good.all():
        tally.drop("time or value out of range", int((~good).sum()))
        rows = SystemRows(rows.timestamp[good], rows.value[good], rows.head[good], rows.heads)
    if of_us is not None and not (near := np.abs(rows.timestamp - of_us / 1e6) <= FAR_S).all():
        tally.drop("time far from that of the file", int((~near).sum()))
        rows = SystemRows(rows.timestamp[near], rows.value[near], rows.head[near], rows.heads)
    return rows, tally.close(len(rows.timestamp))


def _heads_within_limits(heads: tuple[Head, ...]) -> NDArray[np.bool_]:
    """Return which heads are of a file's first MAX_NODES nodes and among its first MAX_METRICS."""
    nodes = set(list(dict.fromkeys(head[3] for head in heads))[:MAX_NODES])
    return np.array([head[3] in nodes and number < MAX_METRICS for number, head in enumerate(heads)], np.bool_)
