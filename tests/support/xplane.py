"""Write traces as TensorFlow's and JAX's profilers do: an XSpace message, from plain Python values."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

Event = tuple[str, int, int, Mapping[str, object]]  # name, offset and duration in picoseconds, arguments


def varint(value: int) -> bytes:
    """Encode a number."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """Encode a field with a number."""
    return varint(field << 3) + varint(value)


def content(field: int, value: bytes | str) -> bytes:
    """Encode a field with text, bytes or a message."""
    data = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(data)) + data


def stat(key: int, value: object) -> bytes:
    """Encode an argument."""
    if isinstance(value, float):
        return number(1, key) + varint(2 << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, int):
        return number(1, key) + number(4, value)
    if isinstance(value, bytes):
        return number(1, key) + content(6, value)
    return number(1, key) + content(5, str(value))


class Plane:
    """A plane that grows by lines."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._names: dict[str, int] = {}
        self._keys: dict[str, int] = {}
        self._blobs: dict[str, bytes] = {}
        self._stats: list[bytes] = []
        self._lines: list[bytes] = []

    def argument(self, name: str, value: object) -> Plane:
        """Add an argument of the plane."""
        self._stats.append(stat(self._key(name), value))
        return self

    def program(self, name: str, proto: bytes) -> Plane:
        """Add a compiled program."""
        self._names[name] = len(self._names) + 1
        self._blobs[name] = content(5, stat(self._key("hlo_proto"), proto))
        return self

    def line(
        self, name: str, events: Iterable[Event], *, time_ns: int = 0, ident: int = 1, refer: bool = False
    ) -> Plane:
        """Add a line; `refer`: its arguments refer to texts of the plane."""
        parts = [number(1, ident), content(2, name), number(3, time_ns)]
        for title, offset, duration, arguments in events:
            key = self._names.setdefault(title, len(self._names) + 1)
            event = number(1, key) + number(2, offset) + number(3, duration)
            for argument, value in arguments.items():
                body = stat(self._key(argument), value)
                if refer and isinstance(value, str):
                    body = number(1, self._key(argument)) + number(7, self._key(value))
                event += content(4, body)
            parts.append(content(4, event))
        self._lines.append(b"".join(parts))
        return self

    def _key(self, name: str) -> int:
        return self._keys.setdefault(name, len(self._keys) + 1)

    def encode(self) -> bytes:
        """Return the message."""
        parts = [content(2, self._name), *(content(3, line) for line in self._lines)]
        for name, key in self._names.items():
            value = number(1, key) + content(2, name) + self._blobs.get(name, b"")
            parts.append(content(4, number(1, key) + content(2, value)))
        for name, key in self._keys.items():
            parts.append(content(5, number(1, key) + content(2, number(1, key) + content(2, name))))
        parts += [content(6, one) for one in self._stats]
        return b"".join(parts)


def space(*planes: Plane) -> bytes:
    """Return a whole file."""
    return b"".join(content(1, plane.encode()) for plane in planes)


def program(module: str, origins: Mapping[str, str]) -> bytes:
    """Return an HloProto with these instructions and the framework's names of their operations."""
    instructions = [content(2, content(1, name) + content(7, content(2, origin))) for name, origin in origins.items()]
    return content(1, content(1, module) + content(3, content(1, "main") + b"".join(instructions)))


def large(events: int) -> bytes:
    """Return a trace of so many events, with the arguments of a compiled program's operations."""
    half = events // 2
    arguments = {
        "hlo_op": "fusion",
        "hlo_module": "jit_step",
        "program_id": 6,
        "run_id": -786533828,
        "device_ordinal": 0,
    }
    block: list[Event] = []
    for at in range(64):
        block += [
            (f"fusion.{at}", at * 10**6, 900_000, arguments),
            (f"end: fusion.{at}", at * 10**6 + 900_000, 10**4, {}),
        ]
    plane = Plane("/host:CPU")
    plane.line("Eigen", block * (half // 64), refer=True)
    return space(plane, Plane("Task Environment").argument("profile_start_time", 1_700_000_000_000_000_000))
