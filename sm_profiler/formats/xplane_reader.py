"""Traces of TensorFlow's and JAX's profilers (`*.xplane.pb`): bytes to columns.

The file is one protobuf message, XSpace: planes (a host, a device), their lines (a thread, a stream) and their events.
Events refer to texts of their plane. They are decoded together, field by field, so that a million of them takes a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats.columns import Category, Floats, Ints, Numbering, Rows
from sm_profiler.formats.outcome import MAX_FILE_BYTES, REFUSED, Outcome, Tally
from sm_profiler.formats.xplane_events import (
    KINDS,
    LENGTH,
    VARINT,
    DamagedMessageError,
    Field,
    PlaneEvents,
    Shared,
    fields,
    signed,
    sound_fields,
    text,
)

_PATH_TO_NAME = (1, 1)  # HloProto.hlo_module, HloModuleProto.name
_PATH_TO_INSTRUCTIONS = (1, 3, 2)  # HloProto.hlo_module, HloModuleProto.computations, HloComputationProto.instructions
_INSTRUCTION_NAME, _METADATA = 1, 7  # of an instruction
_OP_NAME = 2  # of OpMetadata


def op_names(program: bytes) -> dict[str, str]:
    """Return the framework's name of each instruction, `jit(step)/transpose(jvp())/dot_general`.

    Args:
        program: an HloProto; of a damaged one, the part before the damage counts.
    """
    view = memoryview(program)
    names: dict[str, str] = {}
    for instruction in _descend(view, _whole(view), _PATH_TO_INSTRUCTIONS):
        name = origin = ""
        for field in _sound(view, instruction):
            if field.wire != LENGTH:
                continue
            if field.number == _INSTRUCTION_NAME:
                name = text(view, field)
            elif field.number == _METADATA:
                found = [text(view, part) for part in _sound(view, field) if part[:2] == (_OP_NAME, LENGTH)]
                origin = found[-1] if found else ""
        if name and origin:
            names[name] = origin
    return names


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


HOST = -1  # `Line.device` of a thread
_EPOCH_NS = 10**17  # later times are since the epoch, earlier ones since the start of the trace
_LAST_NS = float(1 << 62)
MAX_PARTS = 10_000_000  # planes, lines, texts and their parts; the largest traces of TPUs have some millions
FREE_PARTS, BYTES_A_PART = 100_000, 4  # parts of a file: so many, and one for so many bytes
_LEAST = 2  # bytes of a line or an argument with anything in it
MAX_ERRORS = 100
_MAX_ERROR = 300  # bytes

# Field numbers of the messages.
_PLANES, _ERRORS = 1, 2
_PLANE_NAME, _LINES, _EVENT_METADATA, _STAT_METADATA, _PLANE_STATS = 2, 3, 4, 5, 6
_LINE_ID, _LINE_NAME, _LINE_TIME, _LINE_SHOWN = 1, 2, 3, 11
_KEY, _VALUE = 1, 2  # of an entry of a map
_NAME, _METADATA_STATS = 2, 5
_STAT_ID, _UNSIGNED, _SIGNED, _BYTES = 1, 3, 4, 6


@attrs.frozen
class Line:
    """A thread of the host or a row of a device.

    Attributes:
        plane: name of the host or device: `/host:CPU`, `/device:GPU:0`.
        name: its name.
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
        name: names.
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
        events: its events.
        lines: the lines that have events.
        base_ns: origin of times, nanoseconds since the epoch; 0 if unknown.
        programs: number of a compiled program → its HloProto.
        errors: what the profiler complained about.
    """

    events: XplaneEvents
    lines: tuple[Line, ...]
    base_ns: int
    programs: Mapping[int, bytes]
    errors: tuple[str, ...] = ()

    def origins(self) -> Category:
        """Return the framework's name of the operation that each event ran, such as `gradient_tape/dense/MatMul`.

        It comes from the event or its compiled program; "" if neither has one.
        """
        events = self.events
        numbers = Numbering()
        codes = np.array([numbers[value] for value in events.tf_op.values] or [numbers[""]], np.int32)
        origin = codes[events.tf_op.codes]
        rows = np.flatnonzero((origin == numbers[""]) & (events.hlo_op.codes != _code(events.hlo_op, "")))
        keys = np.column_stack([events.hlo_op.codes[rows], events.hlo_module.codes[rows], events.program[rows]])
        distinct, which = np.unique(keys, axis=0, return_inverse=True)
        find = _Origins(self.programs)
        found = [
            numbers[find(events.hlo_op.values[op], events.hlo_module.values[module], int(program))]
            for op, module, program in distinct
        ]
        origin[rows] = np.array(found, np.int32)[which.reshape(-1)] if found else 0
        return Category(origin, tuple(numbers))


def _code(texts: Category, wanted: str) -> int:
    return texts.values.index(wanted) if wanted in texts.values else -1


class _Origins:
    """Finds what an operation of XLA comes from."""

    def __init__(self, programs: Mapping[int, bytes]) -> None:
        self._names = {number: op_names(program) for number, program in programs.items()}
        self._modules = {number: module_name(program) for number, program in programs.items()}
        self._by_module: dict[str, dict[str, str]] = {}
        for number, name in self._modules.items():
            known = self._by_module.setdefault(name, {})
            for op, origin in self._names[number].items():
                known.setdefault(op, origin)

    def __call__(self, op: str, module: str, program: int) -> str:
        """Return it; "" if no program has it.  JAX on a CPU numbers programs and their events differently."""
        if module and self._modules.get(program) != module:
            names = self._by_module.get(module, {})
        else:
            names = self._names.get(program, {})
        return names.get(op, "")


def read_xplane(data: bytes | memoryview) -> tuple[XplaneTrace, Outcome]:
    """Read a trace.

    Args:
        data: the whole file; may be a memory map.

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
        self.lines: list[Line] = []
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
        """Read the texts, then the lines."""
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
            reader.lines.append(Line(self._name, shown or name, number, _device(self._name)))
            reader.line_ns.append(time_ns)


def _device(plane: str) -> int:
    """Return the number of a device: `/device:GPU:1` is 1."""
    kind, _, rest = plane.removeprefix("/").partition(":")
    number = rest.rpartition(":")[2].partition(" ")[0]
    return int(number) if kind == "device" and number.isdecimal() and len(number) < 6 else HOST
