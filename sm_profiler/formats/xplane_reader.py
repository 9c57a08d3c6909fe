"""Traces of TensorFlow's and JAX's profilers (`*.xplane.pb`): bytes to columns.

The file is one protobuf message, XSpace: planes (a host, a device), their lines (a thread, a stream) and their events.
Events refer to texts of their plane. They are decoded together, field by field, so that a million of them takes a second.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import attrs
import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats.columns import Category, Floats, Ints, Mask, Numbering, Rows
from sm_profiler.formats.outcome import MAX_FILE_BYTES, REFUSED, Outcome, Tally
from sm_profiler.formats.recorded import Frame

Bytes: TypeAlias = NDArray[np.uint8]

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5  # wire types
_MAX_VARINT = 10  # bytes
_MASK64 = (1 << 64) - 1
_MAX_NUMBER = (1 << 29) - 1  # of a field

HLO_OP, HLO_MODULE, TF_OP, PROGRAM = "hlo_op", "hlo_module", "tf_op", "program_id"
STATS = (HLO_OP, HLO_MODULE, TF_OP, PROGRAM)  # the arguments of events that are read
# Columns of events: offset in their line and duration (nanoseconds), number of the name, of the line, and STATS.
Part: TypeAlias = tuple[NDArray[Any], ...]
KINDS = (np.float64, np.float64, np.int32, np.int32, np.int32, np.int32, np.int32, np.int64)

_CHUNK = 1 << 16  # events decoded together
_MIN_EVENT = 2  # bytes: it refers to its name
_MAX_FIELDS = 64  # of an event; further ones are not read
_FIXED = {FIXED64: 8, FIXED32: 4}  # bytes
_EVENT_TAG = 0x22  # a line's events
_MORE = 0x80  # a byte that another one follows
# Field numbers of events and their arguments.
_EVENTS = 4
_EVENT_ID, _OFFSET, _DURATION, _EVENT_STATS = 1, 2, 3, 4
_STAT_ID, _UNSIGNED, _SIGNED, _TEXT, _REFERENCE = 1, 3, 4, 5, 7

_PATH_TO_NAME = (1, 1)  # HloProto.hlo_module, HloModuleProto.name
_PATH_TO_INSTRUCTIONS = (1, 3, 2)  # HloProto.hlo_module, HloModuleProto.computations, HloComputationProto.instructions
_PATH_TO_FRAMES = (1, 17)  # HloProto.hlo_module, HloModuleProto.stack_frame_index
_INSTRUCTION_NAME, _METADATA = 1, 7  # of an instruction
_OP_NAME, _STACK_FRAME = 2, 15  # of OpMetadata
_FILE_NAMES, _FUNCTION_NAMES, _PLACES, _FRAMES = 1, 2, 3, 4  # of StackFrameIndex; numbers in it start at 1
_MAX_CALLS = 30  # of a stack

HOST = -1  # `Line.device` of a thread
_EPOCH_NS = 10**17  # later times are since the epoch, earlier ones since the start of the trace
_LAST_NS = float(1 << 62)
MAX_PARTS = 10_000_000  # planes, lines, texts and their parts; the largest traces of TPUs have some millions
FREE_PARTS, BYTES_A_PART = 100_000, 4  # parts of a file: so many, and one for so many bytes
_LEAST = 2  # bytes of a line or an argument with anything in it
MAX_ERRORS = 100
_MAX_ERROR = 300  # bytes

# Field numbers of the file, its planes and their lines.
_PLANES, _ERRORS = 1, 2
_PLANE_NAME, _LINES, _EVENT_METADATA, _STAT_METADATA, _PLANE_STATS = 2, 3, 4, 5, 6
_LINE_ID, _LINE_NAME, _LINE_TIME, _LINE_SHOWN = 1, 2, 3, 11
_KEY, _VALUE = 1, 2  # of an entry of a map
_NAME, _METADATA_STATS = 2, 5
_BYTES = 6


class Field(NamedTuple):
    """One field of a message.

    Attributes:
        wire: VARINT, FIXED64, LENGTH or FIXED32.
        value: the number of a VARINT; else where the content starts.
        end: where the content ends.
    """

    number: int
    wire: int
    value: int
    end: int


class DamagedMessageError(Exception):
    """A message that ends early or is malformed."""


def varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """Return the unsigned number at a place, and where it ends.

    Raises:
        DamagedMessageError: it does not end before `end`.
    """
    value = shift = 0
    for place in range(at, min(end, at + _MAX_VARINT)):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < _MORE:
            return value & _MASK64, place + 1
        shift += 7
    raise DamagedMessageError


def fields(data: memoryview, at: int, end: int) -> Iterator[Field]:
    """Yield the fields of a message.

    Raises:
        DamagedMessageError: the message is cut off or damaged after the fields so far.
    """
    while at < end:
        tag, at = varint(data, at, end)
        number, wire = tag >> 3, tag & 7
        if not 0 < number <= _MAX_NUMBER:
            raise DamagedMessageError
        if wire == VARINT:
            value, at = varint(data, at, end)
            yield Field(number, wire, value, at)
            continue
        if wire == LENGTH:
            size, at = varint(data, at, end)
        elif wire in (FIXED64, FIXED32):
            size = 8 if wire == FIXED64 else 4
        else:
            raise DamagedMessageError
        if size > end - at:
            raise DamagedMessageError
        yield Field(number, wire, at, at + size)
        at += size


def sound_fields(data: memoryview, at: int, end: int, tally: Tally) -> Iterator[Field]:
    """Yield the fields of a message up to the first damage, which is counted."""
    try:
        yield from fields(data, at, end)
    except DamagedMessageError:
        tally.drop("cut off or damaged, the rest")


def signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def text(data: memoryview, field: Field) -> str:
    return bytes(data[field.value : field.end]).decode(errors="replace")


def varints(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """Return the numbers at many places, as int64, and where they end; places behind the data read its last byte."""
    last = len(data) - 1
    byte = data[np.minimum(at, last)]
    value = (byte & 0x7F).astype(np.int64)
    after = at + 1
    rows = np.flatnonzero(byte >= _MORE)
    for count in range(1, _MAX_VARINT):
        if not len(rows):
            break
        byte = data[np.minimum(after[rows], last)]
        value[rows] |= (byte & 0x7F).astype(np.int64) << (7 * count)
        after[rows] += 1
        rows = rows[byte >= _MORE]
    after[rows] = np.iinfo(np.int64).max // 2  # no end: beyond any message
    return value, after


class Shared:
    """State that the events of all planes share: the file, its texts, and the columns so far.

    Attributes:
        tally: what was lost.
        names: texts of names → their numbers.
        texts: texts of arguments → their numbers.
    """

    def __init__(self, view: memoryview, tally: Tally) -> None:
        self.view = view
        self.data: Bytes = np.frombuffer(view, np.uint8)
        self.tally = tally
        self.names, self.texts = Numbering(), Numbering()
        self.no_text = self.texts[""]
        self.parts: list[Part] = []


class _Lookup:
    """Ids of a plane as numbers of texts that all planes share."""

    def __init__(self, names: Mapping[int, str], numbers: Numbering) -> None:
        keys = sorted(names)
        self._order = np.array(keys, np.int64)
        self._codes = np.array([numbers[names[key]] for key in keys], np.int32)
        self._unknown = numbers[""]

    def __call__(self, ids: Ints) -> NDArray[np.int32]:
        if not len(self._order):
            return np.full(len(ids), self._unknown, np.int32)
        place = np.minimum(np.searchsorted(self._order, ids), len(self._order) - 1)
        found: NDArray[np.int32] = np.where(self._order[place] == ids, self._codes[place], self._unknown).astype(
            np.int32
        )
        return found


class PlaneEvents:
    """The events of a plane: their places in the file, decoded when there are enough of them.

    Attributes:
        count: number of events so far.
    """

    def __init__(self, shared: Shared, event_names: Mapping[int, str], stat_names: Mapping[int, str]) -> None:
        self._shared = shared
        self.count = 0
        self._starts, self._ends, self._lines = array("q"), array("q"), array("q")
        self._names = _Lookup(event_names, shared.names)
        self._references = _Lookup(stat_names, shared.texts)
        wanted = {key: STATS.index(name) for key, name in stat_names.items() if name in STATS and 0 <= key < _CHUNK}
        self._column = np.full(max(wanted, default=0) + 2, -1, np.int8)  # the last is for all larger ids
        self._column[list(wanted)] = list(wanted.values())

    def add(self, line: Field, row: int) -> Generator[Field]:  # calls would take as long as the rest
        """Take the events of a line; yield its other fields."""
        view, tally = self._shared.view, self._shared.tally
        starts, ends = self._starts, self._ends
        add_start, add_end = starts.append, ends.append
        at, end = line.value, line.end
        empty = 0  # each would take a column's row, thirty times its bytes
        while at < end:
            # One event after another, as fast as Python can: a tag of one byte, a length of one or two.
            for _ in range(_CHUNK - len(starts)):
                if end - at < 3 or view[at] != _EVENT_TAG:  # what the fast way needs
                    break
                size = view[at + 1]
                after = at + 2
                if size >= _MORE:
                    second = view[after]
                    if second >= _MORE:
                        break
                    size += (second - 1) << 7
                    after += 1
                if size > end - after:
                    break
                at = after + size
                if size < _MIN_EVENT:
                    empty += 1
                    continue
                add_start(after)
                add_end(at)
            if len(starts) >= _CHUNK:
                self._fill_lines(row)
                self.decode()
                continue
            field = next(sound_fields(view, at, end, tally), None)
            if field is None:
                break
            at = field.end
            if field.number == _EVENTS and field.wire == LENGTH:
                if field.end - field.value < _MIN_EVENT:
                    empty += 1
                    continue
                add_start(field.value)
                add_end(field.end)
            else:
                self._fill_lines(row)  # the reader may stop here
                yield field
        self._fill_lines(row)
        tally.drop("event without a name", empty)

    def _fill_lines(self, row: int) -> None:
        fresh = len(self._starts) - len(self._lines)
        self._lines.extend([row] * fresh)
        self.count += fresh

    def decode(self) -> None:
        """Append the columns of the events so far."""
        count = len(self._starts)
        if not count:
            return
        at, end, lines = (np.array(places, np.int64) for places in (self._starts, self._ends, self._lines))
        del self._starts[:], self._ends[:], self._lines[:]
        scalars = {number: np.zeros(count, np.int64) for number in (_EVENT_ID, _OFFSET, _DURATION)}
        no_text = self._shared.no_text
        stats = [np.full(count, -1 if name == PROGRAM else no_text, np.int64) for name in STATS]
        keep = self._decode_fields(at, end, scalars, stats)
        columns: Part = (
            scalars[_OFFSET] / 1000,
            scalars[_DURATION] / 1000,
            self._names(scalars[_EVENT_ID]),
            lines.astype(np.int32),
            *(column.astype(kind) for column, kind in zip(stats, KINDS[-len(STATS) :], strict=True)),
        )
        self._shared.parts.append(columns if keep.all() else tuple(column[keep] for column in columns))

    def _decode_fields(self, at: Ints, end: Ints, scalars: Mapping[int, Ints], stats: list[Ints]) -> Mask:
        """Advance all events by one field at a time; return which are whole."""
        data, tally = self._shared.data, self._shared.tally
        whole = np.ones(len(at), np.bool_)
        rows = np.flatnonzero(at < end)
        for _ in range(_MAX_FIELDS):
            if not len(rows):
                break
            tag, after = varints(data, at[rows])
            value, behind = varints(data, after)
            next_at = behind.copy()
            for kind in np.unique(tag):
                mine = np.flatnonzero(tag == kind)
                number, wire = int(kind) >> 3, int(kind) & 7
                if wire == VARINT and number in scalars:
                    scalars[number][rows[mine]] = value[mine]
                elif wire == LENGTH:
                    next_at[mine] += value[mine]
                    if number == _EVENT_STATS:
                        self._decode_stats(rows[mine], behind[mine], next_at[mine], stats)
                elif wire != VARINT:
                    next_at[mine] = after[mine] + _FIXED.get(wire, -len(data))
            bad = (next_at > end[rows]) | (next_at <= at[rows])
            whole[rows[bad]] = False
            at[rows] = next_at
            rows = rows[~bad & (next_at < end[rows])]
        tally.drop("event damaged", int((~whole).sum()))
        if len(rows):
            tally.mend("arguments of some events were not read")
        return whole

    def _decode_stats(self, rows: Ints, at: Ints, end: Ints, stats: list[Ints]) -> None:
        """Read one argument of many events, if it is one of `STATS`."""
        shared, data = self._shared, self._shared.data
        key, after = varints(data, at + 1)
        number = self._column[np.minimum(key.view(np.uint64), len(self._column) - 1).astype(np.int64)]
        wanted = np.flatnonzero((number >= 0) & (end <= len(data)) & (after < end))
        wanted = wanted[data[at[wanted]] == _STAT_ID << 3]
        if not len(wanted):
            return
        rows, end, after, number = rows[wanted], end[wanted], after[wanted], number[wanted]
        tag, after = varints(data, after)
        value, behind = varints(data, after)
        for which, target in enumerate(stats):
            mine = np.flatnonzero(number == which)
            if not len(mine):
                continue
            if STATS[which] == PROGRAM:
                mine = mine[(tag[mine] == _SIGNED << 3) | (tag[mine] == _UNSIGNED << 3)]
                target[rows[mine]] = value[mine]
                continue
            referring = mine[tag[mine] == _REFERENCE << 3]
            target[rows[referring]] = self._references(value[referring])
            for place in mine[(tag[mine] == (_TEXT << 3 | LENGTH)) & (value[mine] == end[mine] - behind[mine])]:
                content = bytes(shared.view[behind[place] : end[place]])
                target[rows[place]] = shared.texts[content.decode(errors="replace")]


class Origin(NamedTuple):
    """The origin of an operation of a compiled program.

    Attributes:
        name: the framework's name, `jit(step)/transpose(jvp())/dot_general`; "" if it is unknown.
        calls: file, line and function of the calls that it was traced in, the innermost first.
    """

    name: str = ""
    calls: tuple[Frame, ...] = ()


def op_origins(program: bytes) -> dict[str, Origin]:
    """Return what each instruction comes from.

    Args:
        program: an HloProto; of a damaged one, the part before the damage counts.
    """
    view = memoryview(program)
    found: dict[str, tuple[str, int]] = {}
    for instruction in _descend(view, _whole(view), _PATH_TO_INSTRUCTIONS):
        name, origin, frame = "", "", 0
        for field in _sound(view, instruction):
            if field.wire == LENGTH and field.number == _INSTRUCTION_NAME:
                name = text(view, field)
            elif field.wire == LENGTH and field.number == _METADATA:
                for part in _sound(view, field):
                    if part.number == _OP_NAME and part.wire == LENGTH:
                        origin = text(view, part)
                    elif part.number == _STACK_FRAME and part.wire == VARINT:
                        frame = part.value
        if name and origin:
            found[name] = origin, frame
    stacks = _Stacks(view) if any(frame for _, frame in found.values()) else None
    return {name: Origin(origin, stacks.calls(frame) if stacks else ()) for name, (origin, frame) in found.items()}


class _Stacks:
    """The stacks in which the operations of a program were traced."""

    def __init__(self, view: memoryview) -> None:
        self._texts: dict[int, list[str]] = {_FILE_NAMES: [""], _FUNCTION_NAMES: [""]}
        self._numbers: dict[int, list[dict[int, int]]] = {_PLACES: [{}], _FRAMES: [{}]}
        self._known: dict[int, tuple[Frame, ...]] = {}
        for index in _descend(view, _whole(view), _PATH_TO_FRAMES):
            for field in _sound(view, index):
                if field.wire == LENGTH and field.number in self._texts:
                    self._texts[field.number].append(text(view, field))
                elif field.wire == LENGTH and field.number in self._numbers:
                    parts = {part.number: part.value for part in _sound(view, field) if part.wire == VARINT}
                    self._numbers[field.number].append(parts)

    def calls(self, number: int) -> tuple[Frame, ...]:
        """Return a frame and its callers, as far as the program has them."""
        if number not in self._known:
            frames, places, found, at = self._numbers[_FRAMES], self._numbers[_PLACES], list[Frame](), number
            while 0 < at < len(frames) and len(found) < _MAX_CALLS:
                place, at = frames[at].get(1, 0), frames[at].get(2, 0)
                where = places[place] if 0 <= place < len(places) else {}
                file, function = (self._text(kind, where.get(kind, 0)) for kind in (_FILE_NAMES, _FUNCTION_NAMES))
                found.append((file, where.get(3, 0), function))
            self._known[number] = tuple(found)
        return self._known[number]

    def _text(self, kind: int, number: int) -> str:
        texts = self._texts[kind]
        return texts[number] if 0 <= number < len(texts) else ""


def module_name(program: bytes) -> str:
    """Return the name of a program's module, `jit_step`; "" if there is none."""
    view = memoryview(program)
    return next((text(view, field) for field in _descend(view, _whole(view), _PATH_TO_NAME)), "")


def _whole(view: memoryview) -> Field:
    return Field(0, LENGTH, 0, len(view))


def _descend(view: memoryview, message: Field, path: tuple[int, ...]) -> Iterator[Field]:
    if not path:
        yield message
        return
    for field in _sound(view, message):
        if field.number == path[0] and field.wire == LENGTH:
            yield from _descend(view, field, path[1:])


def _sound(view: memoryview, message: Field) -> Iterator[Field]:
    try:
        yield from fields(view, message.value, message.end)
    except DamagedMessageError:
        return


@attrs.frozen
class XLine:
    """A thread of the host or a row of a device.

    Attributes:
        plane: name of the host or device: `/host:CPU`, `/device:GPU:0`.
        number: its id in the file.
        device: number of the device; HOST for a thread.
    """

    plane: str
    name: str
    number: int
    device: int


@attrs.frozen(eq=False)
class XplaneEvents:
    """The events of a trace, line by line.

    Attributes:
        start_ns: since `XplaneTrace.base_ns`.
        duration_ns: nanoseconds.
        line: int32; number in `XplaneTrace.lines`.
        hlo_op, hlo_module: the operation of XLA and its module; "" for other events.
        tf_op: the framework's name of what a device ran; "" if unknown.
        program: int64; number of the compiled program, -1 if there is none.
    """

    start_ns: Floats
    duration_ns: Floats
    name: Category
    line: NDArray[np.int32]
    hlo_op: Category
    hlo_module: Category
    tf_op: Category
    program: Ints

    def __len__(self) -> int:
        return len(self.start_ns)

    def __getitem__(self, rows: Rows) -> XplaneEvents:
        return XplaneEvents(*(getattr(self, field.name)[rows] for field in attrs.fields(XplaneEvents)))


@attrs.frozen(eq=False)
class XplaneTrace:
    """One trace.

    Attributes:
        lines: the lines that have events.
        base_ns: origin of times, nanoseconds since the epoch; 0 if unknown.
        programs: number of a compiled program → its HloProto.
        errors: what the profiler complained about.
    """

    events: XplaneEvents
    lines: tuple[XLine, ...]
    base_ns: int
    programs: Mapping[int, bytes]
    errors: tuple[str, ...] = ()

    @cached_property
    def origins(self) -> Origins:
        """Return what each event ran comes from: by the event itself, or by its compiled program."""
        events = self.events
        numbers = Numbering()
        codes = np.array([numbers[Origin(value)] for value in events.tf_op.values] or [numbers[Origin()]], np.int32)
        origin = codes[events.tf_op.codes]
        rows = np.flatnonzero(~events.hlo_op.mask(""))
        keys = np.column_stack([column[rows] for column in (events.hlo_op.codes, events.hlo_module.codes, events.program, events.tf_op.codes)])  # fmt: skip
        distinct, which = np.unique(keys, axis=0, return_inverse=True)
        find, found = _Programs(self.programs), []
        for op, module, program, named in distinct:
            one = find(events.hlo_op.values[op], events.hlo_module.values[module], int(program))
            name = events.tf_op.values[named]
            found.append(numbers[one._replace(name=name) if name else one])
        origin[rows] = np.array(found, np.int32)[which.reshape(-1)] if found else 0
        return Origins(origin, tuple(numbers))


@attrs.frozen(eq=False)
class Origins:
    """The origins of the events of a trace.

    Attributes:
        codes: int32, shape (events,); `values[codes[i]]` is that of event i.
        values: the different ones.
    """

    codes: NDArray[np.int32]
    values: tuple[Origin, ...]

    def of(self, row: np.integer[Any] | int) -> Origin:
        """Return that of an event."""
        found: Origin = self.values[self.codes[row]]
        return found


class _Programs:
    """Finds what an operation of XLA comes from."""

    def __init__(self, programs: Mapping[int, bytes]) -> None:
        self._origins = {number: op_origins(program) for number, program in programs.items()}
        self._modules = {number: module_name(program) for number, program in programs.items()}
        self._by_module: dict[str, dict[str, Origin]] = {}
        for number, name in self._modules.items():
            known = self._by_module.setdefault(name, {})
            for op, origin in self._origins[number].items():
                known.setdefault(op, origin)

    def __call__(self, op: str, module: str, program: int) -> Origin:
        """Return it; an empty one if no program has it.  JAX on a CPU numbers programs and their events differently."""
        if module and self._modules.get(program) != module:
            return self._by_module.get(module, {}).get(op, Origin())
        return self._origins.get(program, {}).get(op, Origin())


def read_xplane(data: bytes | memoryview) -> tuple[XplaneTrace, Outcome]:
    """Read a trace.

    Returns:
        The trace and the outcome. No content raises an error.
    """
    view, tally = memoryview(data).cast("B"), Tally()
    if len(view) > MAX_FILE_BYTES:
        view = view[:0]
        tally.drop("file too large")
    reader = _Reader(view, tally)
    for field in reader.fields(0, len(view)):
        if field.wire == LENGTH and field.number == _PLANES:
            _Plane(reader, field.value, field.end).read()
        elif field.wire == LENGTH and field.number == _ERRORS and len(reader.errors) < MAX_ERRORS:
            reader.errors.append(text(view, field._replace(end=min(field.end, field.value + _MAX_ERROR))))
    trace = reader.trace()
    if not len(trace.events):
        tally.mend("no events of a profiler")
    outcome = tally.close(len(trace.events))
    return trace, outcome if len(trace.events) else attrs.evolve(outcome, status=REFUSED)


class _Reader(Shared):
    """Everything read so far."""

    def __init__(self, view: memoryview, tally: Tally) -> None:
        super().__init__(view, tally)
        self.base_ns = 0
        self.programs: dict[int, bytes] = {}
        self.errors: list[str] = []
        self.lines: list[XLine] = []
        self.line_ns: list[int] = []
        self._left = min(MAX_PARTS, FREE_PARTS + len(view) // BYTES_A_PART)

    def fields(self, at: int, end: int) -> Iterator[Field]:
        """Yield the fields of a message, as long as the file has not more of them than a trace has."""
        for field in sound_fields(self.view, at, end, self.tally):
            if self.is_too_large():
                return
            yield field

    def is_too_large(self) -> bool:
        """Count one more part; return whether these are more than a trace has."""
        self._left -= 1
        if self._left == -1:
            self.tally.drop("more parts than a trace has, the rest")
        return self._left < 0

    def trace(self) -> XplaneTrace:
        """Return everything read, with times relative to the trace's start."""
        parts = [list(part[::-1]) for part in self.parts]  # they are freed column by column
        self.parts.clear()
        columns: list[NDArray[Any]] = [
            np.concatenate([part.pop() for part in parts]) if parts else np.empty(0, kind) for kind in KINDS
        ]
        offset, duration, name, line, hlo_op, module, tf_op, program = columns
        line_ns = np.array(self.line_ns or [0], np.int64)
        absolute = line_ns >= _EPOCH_NS
        base = self.base_ns or (int(line_ns[absolute].min()) if absolute.any() else 0)
        start = np.where(absolute, line_ns - base, line_ns)[line] + offset
        sound = (duration >= 0) & (duration < _LAST_NS) & (np.abs(start) < _LAST_NS)
        self.tally.drop("times that cannot be", int((~sound).sum()))
        texts = tuple(self.texts)
        events = XplaneEvents(
            start,
            duration,
            Category(name, tuple(self.names)),
            line,
            Category(hlo_op, texts),
            Category(module, texts),
            Category(tf_op, texts),
            program,
        )
        if not sound.all():
            events = events[sound]
        return XplaneTrace(events, tuple(self.lines), base, self.programs, tuple(self.errors))


class _Plane:
    """One plane; its texts come after its lines in the file, so that these are read last."""

    def __init__(self, reader: _Reader, at: int, end: int) -> None:
        self._reader = reader
        self._view = reader.view
        self._span = at, end
        self._name = ""
        self._event_names: dict[int, str] = {}
        self._stat_names: dict[int, str] = {}
        self._blobs: list[tuple[int, Field]] = []  # stats of the texts of events
        self._stats: list[Field] = []

    def read(self) -> None:
        view, lines = self._view, []
        for field in self._reader.fields(*self._span):
            if field.wire != LENGTH:
                continue
            if field.number == _PLANE_NAME:
                self._name = text(view, field)
            elif field.number == _LINES:
                lines += [field] if field.end - field.value >= _LEAST else []
            elif field.number == _EVENT_METADATA:
                self._add_text(field, self._event_names, self._blobs)
            elif field.number == _STAT_METADATA:
                self._add_text(field, self._stat_names, None)
            elif field.number == _PLANE_STATS:
                self._stats.append(field)
        self._read_properties()
        if lines:
            events = PlaneEvents(self._reader, self._event_names, self._stat_names)
            for field in lines:
                self._read_line(field, events)
            events.decode()

    def _add_text(self, entry: Field, names: dict[int, str], blobs: list[tuple[int, Field]] | None) -> None:
        key, name = 0, ""
        for field in self._reader.fields(entry.value, entry.end):
            if field.number == _KEY and field.wire == VARINT:
                key = signed(field.value)
            elif field.number == _VALUE and field.wire == LENGTH:
                for part in self._reader.fields(field.value, field.end):
                    if part.number == _NAME and part.wire == LENGTH:
                        name = text(self._view, part)
                    elif part.number == _METADATA_STATS and part.wire == LENGTH and blobs is not None:
                        blobs += [(key, part)] if part.end - part.value >= _LEAST else []
        names[key] = name

    def _read_properties(self) -> None:
        """Read the start of the trace and the compiled programs, which are arguments of the plane and of its texts."""
        for field in self._stats:
            name, value = self._stat(field)
            if name == "profile_start_time" and isinstance(value, int):
                self._reader.base_ns = value
        for key, field in self._blobs:
            _, value = self._stat(field)
            if isinstance(value, bytes):
                self._reader.programs[key] = value

    def _stat(self, stat: Field) -> tuple[str, int | bytes | None]:
        name = ""
        value: int | bytes | None = None
        for field in self._reader.fields(stat.value, stat.end):
            if field.number == _STAT_ID:
                name = self._stat_names.get(field.value, "")
            elif field.number in (_UNSIGNED, _SIGNED):
                value = signed(field.value)
            elif field.number == _BYTES and field.wire == LENGTH:
                value = bytes(self._view[field.value : field.end])
        return name, value

    def _read_line(self, line: Field, events: PlaneEvents) -> None:
        reader = self._reader
        name = shown = ""
        number = time_ns = 0
        before = events.count
        others = events.add(line, len(reader.lines))
        for field in others:
            if reader.is_too_large():
                others.close()
                break
            if field.number == _LINE_ID:
                number = signed(field.value)
            elif field.number == _LINE_NAME and field.wire == LENGTH:
                name = text(self._view, field)
            elif field.number == _LINE_SHOWN and field.wire == LENGTH:
                shown = text(self._view, field)
            elif field.number == _LINE_TIME:
                time_ns = signed(field.value)
        if events.count > before:
            reader.lines.append(XLine(self._name, shown or name, number, _device(self._name)))
            reader.line_ns.append(time_ns)


def _device(plane: str) -> int:
    """Return the number of a device: `/device:GPU:1` is 1."""
    kind, _, rest = plane.removeprefix("/").partition(":")
    number = rest.rpartition(":")[2].partition(" ")[0]
    return int(number) if kind == "device" and number.isdecimal() and len(number) < 6 else HOST
