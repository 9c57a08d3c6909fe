"""System metric files: bytes to columns."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats.columns import Floats
from sm_profiler.formats.numbering import Numbering
from sm_profiler.formats.outcome import LAST_US, Outcome, Tally
from sm_profiler.formats.salvage import clean, objects

Head = tuple[str, str, str, str]  # type, name, dimension, node


@attrs.frozen(eq=False)
class SystemRows:
    """The rows of one file.

    Attributes:
        timestamp, value: as in SystemColumns.
        head: int32, which of `heads` each row has.
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
_HEAD = attrgetter("type", "name", "dimension", "node")
_TIMESTAMP, _VALUE = attrgetter("timestamp"), attrgetter("value")


def read_system(data: bytes, node: str) -> tuple[SystemRows, Outcome]:
    """Read a file of system metrics.

    Args:
        data: the file.
        node: the node its name tells, for records that name none.

    Returns:
        Its rows in their order, and what became of it.  Never raises for what stands in the file.
    """
    tally = Tally()
    if not data.strip():
        tally.mend("empty")
        return _rows([], node), attrs.evolve(tally.close(0), status="refused")
    try:
        records = _DECODER.decode_lines(data)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        records = _salvage(data, tally)
    return account(_rows(records, node), tally)


def _salvage(data: bytes, tally: Tally) -> list[_Record]:
    records = []
    for item in objects(clean(data, tally), tally):
        try:
            records.append(_DECODER.decode(item))
        except (msgspec.MsgspecError, ValueError, RecursionError):  # noqa: PERF203 - damaged files only
            tally.drop("no measurement of a known form")
    return records


def _rows(records: list[_Record], node: str) -> SystemRows:
    heads = Numbering()
    count = len(records)
    head = np.fromiter(map(heads.__getitem__, map(_HEAD, records)), np.int32, count)
    timestamp = np.fromiter(map(_TIMESTAMP, records), np.float64, count)
    value = np.fromiter(map(_VALUE, records), np.float64, count)
    table: Any = tuple((kind, name or "", dimension or "", on or node) for kind, name, dimension, on in heads)
    return SystemRows(timestamp, value, head, table)


def account(rows: SystemRows, tally: Tally | None = None) -> tuple[SystemRows, Outcome]:
    """The rows without those whose time or value is out of every range, and what became of their file."""
    tally = tally or Tally()
    good = (rows.timestamp >= 0) & (rows.timestamp < LAST_US / 1e6) & np.isfinite(rows.value)
    if not good.all():
        tally.drop("time or value out of range", int((~good).sum()))
        rows = SystemRows(rows.timestamp[good], rows.value[good], rows.head[good], rows.heads)
    return rows, tally.close(len(rows.timestamp))
