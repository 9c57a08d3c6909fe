"""The protocol between a parsing process and its owner: requests, and rows as bytes."""

from __future__ import annotations

from typing import IO, Any

import msgspec
import numpy as np

from sm_profiler.formats.outcome import Outcome
from sm_profiler.formats.system_reader import SystemRows
from sm_profiler.formats.trace_rows import LooseEnd, OpenEvent, TraceRows
from sm_profiler.processes import read_exactly, receive_message, send_message

Rows = SystemRows | TraceRows


class Request(msgspec.Struct, array_like=True):
    """A file to parse: the process opens it by its path, or `size` bytes follow.

    The path is bytes, as names of local files need not be text.
    """

    is_system: bool
    node: str
    kind: str
    start_us: float
    approximate: bool
    path: bytes
    size: int


class _Answer(msgspec.Struct, array_like=True):
    count: int
    outcome: tuple[str, int, str]
    is_system: bool
    heads: list[tuple[str | int, str | int, str | int, str | int]]
    argument_count: int = 0
    others: list[str] = []
    node: str = ""
    kind: str = ""
    metadata: list[dict[str, Any]] = []
    loose: list[tuple[tuple[str, int | str], float, str]] = []
    left: list[tuple[tuple[str, int | str], tuple[str, str, int, int], float, str]] = []


_ANSWER = msgspec.msgpack.Decoder(_Answer)
_REQUEST = msgspec.msgpack.Decoder(Request)


def send_request(stream: IO[bytes], request: Request, data: bytes) -> None:
    """Send a request."""
    send_message(stream, msgspec.msgpack.encode(request))
    stream.write(data)
    stream.flush()


def receive_request(stream: IO[bytes]) -> tuple[Request, bytes]:
    """Receive a request and the bytes sent with it.

    Raises:
        EOFError: the owner has closed the pipe.
    """
    request = _REQUEST.decode(receive_message(stream))
    return request, read_exactly(stream, request.size)


def send_rows(stream: IO[bytes], rows: Rows, outcome: Outcome) -> None:
    """Send a file's rows."""
    summary = (outcome.status, outcome.lost, outcome.reason)
    if isinstance(rows, SystemRows):
        answer = _Answer(len(rows.value), summary, is_system=True, heads=list(rows.heads))
        arrays: list[Any] = [rows.timestamp, rows.value, rows.head]
    else:
        answer = _Answer(
            len(rows.start_us),
            summary,
            is_system=False,
            heads=list(rows.heads),
            argument_count=len(rows.numbers),
            others=list(rows.others),
            node=rows.node,
            kind=rows.kind,
            metadata=list(rows.metadata),
            loose=[(end.key, end.end_us, end.args) for end in rows.loose_ends],
            left=[(event.key, event.head, event.start_us, event.args) for event in rows.open_events],
        )
        arrays = [rows.start_us, rows.duration_us, rows.head, rows.argument, rows.numbers]
    send_message(stream, msgspec.msgpack.encode(answer))
    for array in arrays:
        stream.write(np.ascontiguousarray(array).data)
    stream.flush()


def receive_rows(stream: IO[bytes]) -> tuple[Rows, Outcome]:
    """Receive a file's rows.

    Raises:
        EOFError: the process has ended.
    """
    answer = _ANSWER.decode(receive_message(stream))
    kinds = "ddi" if answer.is_system else "ddii"
    # Read in the order in which they were written.
    arrays: Any = [np.frombuffer(read_exactly(stream, answer.count * np.dtype(kind).itemsize), kind) for kind in kinds]
    heads: Any = tuple(answer.heads)
    outcome = Outcome(*answer.outcome)
    if answer.is_system:
        timestamp, value, head = arrays
        return SystemRows(timestamp, value, head, heads), outcome
    start, duration, head, argument = arrays
    return TraceRows(
        start,
        duration,
        head,
        argument,
        heads,
        np.frombuffer(read_exactly(stream, answer.argument_count * 48), np.int64).reshape(-1, 6),
        tuple(answer.others),
        answer.node,
        answer.kind,
        tuple(answer.metadata),
        tuple(LooseEnd(*each) for each in answer.loose),
        tuple(OpenEvent(*each) for each in answer.left),
    ), outcome
