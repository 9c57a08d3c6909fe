"""Records of torch.profiler's traces: plain bytes to lists of events.

The records of CHUNK_BYTES exist as Python objects at a time: so few stay in the processor's cache, which doubles the
speed, and a file of any size needs no more memory for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec

from sm_profiler.formats.elements import check_json
from sm_profiler.formats.outcome import BYTE_ORDER_MARK, MAX_RECORD_BYTES, Tally, clean, objects

CHUNK_BYTES = 256 << 10
SALVAGED_BYTES = 2 << 20  # text without a sound border between records is damage, not one record
BROKEN = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
MAX_ELEMENTS = 1 << 18  # of what is in a trace beside its events: the ranks of all process groups, for example

_INT64 = (1 << 63) - 1
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_EVENTS_BYTES = 1024  # length in which `_EVENTS` is sought again when more text arrives
_BORDER = re.compile(rb"\}\s*,\s*(?=\{)")
_BORDER_TRIES = 64  # closing braces inspected for borders between records, from the end of a chunk
_BORDERS = 4  # borders tried
_NUMBER = re.compile(r"-?[0-9]{1,18}")
_NO_NUMBER = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|(?<=[:,\[\s])-?(?:nan|NaN|inf|Inf|Infinity)\b', re.DOTALL)


class Arguments(msgspec.Struct, gc=False, frozen=True):
    """The arguments that are read; the others are skipped without being decoded."""

    stream: int | str = -1
    device: int | str = -1
    correlation: int | str = -1
    bytes: int | str = -1
    sequence: int = msgspec.field(name="Sequence number", default=-1)
    forward_thread: int = msgspec.field(name="Fwd thread id", default=0)
    shapes: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw(b""))
    types: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw(b""))
    values: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=msgspec.Raw(b""))
    collective: str = msgspec.field(name="Collective name", default="")
    in_elements: int = msgspec.field(name="In msg nelems", default=-1)
    out_elements: int = msgspec.field(name="Out msg nelems", default=-1)
    group_size: int = msgspec.field(name="Group size", default=-1)
    group: str = msgspec.field(name="Process Group Name", default="")
    element_type: str = msgspec.field(name="dtype", default="")


NO_ARGUMENTS = Arguments()


class Event(msgspec.Struct, gc=False):
    """An event as torch.profiler writes it."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: float = 0.0
    dur: float = 0.0
    args: Arguments = NO_ARGUMENTS


class _LooseEvent(msgspec.Struct, gc=False):
    """An event of another writer, whose arguments are of any type."""

    ph: str = ""
    cat: str | None = ""
    name: str | None = ""
    pid: Any = -1
    tid: Any = -1
    ts: float | str = 0.0
    dur: float | str | None = 0.0
    args: Any = None


_ARRAY, _LOOSE = msgspec.json.Decoder(list[Event]), msgspec.json.Decoder(_LooseEvent)
_PROPERTIES = msgspec.json.Decoder(dict[str, msgspec.Raw])
_RECORDS = msgspec.json.Decoder(list[msgspec.Raw])
_FIELDS = {field.encode_name: field.name for field in msgspec.structs.fields(Arguments)}
_TEXTS = {"collective", "group", "element_type"}
_RAWS = {"shapes", "types", "values"}


class Records:
    """The records of a trace in lists, and its other contents in `properties`."""

    def __init__(self, blocks: Iterator[bytes], tally: Tally) -> None:
        self.properties: dict[str, Any] = {}
        self._blocks = blocks
        self._tally = tally

    def __iter__(self) -> Iterator[list[Event]]:
        buffer = self._after_head()
        wanted = CHUNK_BYTES
        for block in self._blocks:
            buffer += block
            if len(buffer) < wanted:
                continue
            cut = self._cut(buffer)
            if cut is not None:
                records, end = cut
                del buffer[:end]
                wanted = CHUNK_BYTES
                yield records
            elif len(buffer) > MAX_RECORD_BYTES:
                self._tally.drop("a record that is too long, and all after it")
                return
            else:
                wanted = 2 * len(buffer)  # every try reads all of it
        yield from self._last(bytes(buffer))

    def _after_head(self) -> bytearray:
        """Read up to the first record; what precedes it are properties."""
        buffer = bytearray()
        for block in self._blocks:
            seen = len(buffer)
            buffer += block
            found = _EVENTS.search(buffer, max(0, seen - _EVENTS_BYTES))
            if found:
                head = bytes(buffer[: found.start()]).removeprefix(BYTE_ORDER_MARK).rstrip().rstrip(b",")
                self._remember(head + b"}")
                del buffer[: found.end()]
                return buffer
            if buffer[:1024].lstrip()[:1] == b"[":
                del buffer[: buffer.find(b"[") + 1]
                return buffer
            if len(buffer) > MAX_RECORD_BYTES:
                break
        self._tally.mend("no traceEvents")
        return bytearray()

    def _remember(self, text: bytes) -> None:
        with suppress(*BROKEN, ValueError):
            check_json(text, MAX_ELEMENTS)
            found = msgspec.json.decode(text)
            if isinstance(found, dict):
                self.properties.update(found)

    def _cut(self, buffer: bytearray) -> tuple[list[Event], int] | None:
        """Return the records up to a border in the buffer, and where the others begin; None if no border was found."""
        borders = _borders(buffer)
        for end, following in borders:
            # A border inside a string or an object leaves the array open.
            with suppress(*BROKEN):
                return _decoded(b"".join((b"[", memoryview(buffer)[:end], b"]")), self._tally), following
        if borders and len(buffer) >= SALVAGED_BYTES:
            end, following = borders[0]
            return self._salvaged(bytes(buffer[:end])), following
        return None

    def _last(self, piece: bytes) -> Iterator[list[Event]]:
        """Yield the last records; the properties after them are remembered."""
        with suppress(*BROKEN):
            document = _PROPERTIES.decode(b'{"traceEvents":[' + piece)
            records = _decoded(bytes(document.pop("traceEvents")), self._tally)
            for key, raw in document.items():
                with suppress(*BROKEN, ValueError):
                    check_json(bytes(raw), MAX_ELEMENTS)
                    self.properties[key] = msgspec.json.decode(raw)
            yield records
            return
        with suppress(*BROKEN):
            yield _decoded(b"[" + piece, self._tally)
            return
        found = self._salvaged(piece)
        if found:
            self._tally.mend("array not closed")
        yield found

    def _salvaged(self, piece: bytes) -> list[Event]:
        """Return the whole records of damaged text."""
        items = objects(clean(piece, self._tally), self._tally)
        return [event for item in items for event in self._one(item.encode())]

    def _one(self, item: bytes) -> list[Event]:
        with suppress(*BROKEN):
            return _decoded(b"[" + item + b"]", self._tally)
        self._tally.drop("no event of a known form")
        return []


def _borders(buffer: bytearray) -> list[tuple[int, int]]:
    """Return likely borders, the last one first: the end of a record, and the beginning of the next one."""
    found: list[tuple[int, int]] = []
    brace = len(buffer)
    for _ in range(_BORDER_TRIES):
        brace = buffer.rfind(b"}", 0, brace)
        if brace < 0 or len(found) == _BORDERS:
            break
        if border := _BORDER.match(buffer, brace):
            found.append((brace + 1, border.end()))
    return found


def _decoded(array: bytes, tally: Tally) -> list[Event]:
    try:
        return _ARRAY.decode(array)
    except msgspec.ValidationError:
        return [_event(bytes(raw)) for raw in _RECORDS.decode(array)]
    except msgspec.DecodeError:
        # Kineto writes bandwidths and occupancies as it computed them, and Python writes NaN, too.
        mended = _NO_NUMBER.sub(lambda found: found[0] if found[0][:1] == b'"' else b"null", array)
        if mended == array:
            raise
        records = _decoded(mended, tally)
        tally.mend("NaN and infinite numbers replaced")
        return records


def _event(text: bytes) -> Event:
    """Return an event of any writer: a value of an unexpected type counts as absent."""
    try:
        loose = _LOOSE.decode(text)
    except msgspec.ValidationError:
        return Event()
    found: dict[str, Any] = {}
    for key, value in loose.args.items() if isinstance(loose.args, dict) else ():
        field = _FIELDS.get(key)
        if field in _TEXTS and isinstance(value, str):
            found[field] = value
        elif field in _RAWS:
            found[field] = msgspec.Raw(msgspec.json.encode(value))
        elif field is not None and field not in _TEXTS:
            found[field] = whole(value)
    return Event(
        loose.ph,
        loose.cat or "",
        loose.name or "",
        loose.pid if isinstance(loose.pid, int | str) else -1,
        loose.tid if isinstance(loose.tid, int | str) else -1,
        _real(loose.ts),
        _real(loose.dur),
        Arguments(**found),
    )


def whole(value: Any) -> int:
    """Return a number of 64 bits, also from text; -1 for anything else."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _INT64 else -1


def _real(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")
