"""States of folds as bytes, without pickle: only data, and objects of the classes that are listed here.

The bytes are a length, that many bytes of MessagePack, and the arrays' bytes. A byte of MessagePack can become 72 bytes of
Python objects, a byte of an array stays a byte, so only the former is limited in relation to what arrived.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Callable
from enum import Enum
from importlib import import_module
from typing import IO, Any, TypeAlias

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray

from sm_profiler.formats.elements import check_elements

_OURS = tuple(
    f"sm_profiler.{name}."
    for name in ("formats", "storage", "source", "rules", "metrics", "report", "compact", "diagnosis")
)
_REPORTS = tuple(f"sm_profiler.{name}." for name in ("formats", "rules", "metrics", "report", "diagnosis"))
# What states, tasks and answers of workers contain; anything else is refused.
_LISTED = {
    "compact.rewriting": "Compacted",
    "compact.compacting": "Answer Task",
    "formats.columns": "Category EventColumns SystemColumns",
    "formats.layout": "DetailedTrace SystemFile TraceFile",
    "formats.outcome": "Outcome",
    "formats.system_reader": "SystemRows",
    "formats.trace_rows": "LooseEnd OpenEvent TraceRows",
    "metrics.parts": "PartTable",
    "metrics.sample_fold": "Course Place Sampled",
    "metrics.step_chunks": "Chunk",
    "metrics.step_fold": "LoaderSettings",
    "metrics.step_rows": "StepRows",
    "metrics.step_sample": "StepSample Totals",
    "metrics.system_fold": "Buckets Usage",
    "rules.batch_size": "BatchSizeParameters _Underutilized",
    "rules.bottleneck": "_Totals _WindowCounts",
    "rules.dataloader": "_Waits",
    "rules.gpu_rules": "GPUMemoryIncreaseParameters LowGPUUtilizationParameters _Increase _LowUtilization",
    "rules.load_balancing": "_Histogram",
    "rules.overall": "_Loop",
    "rules.quantile_sketch": "QuantileSketch",
    "rules.rolling_series": "RollingSeries",
    "rules.step_outlier": "_LongStep _Phase",
    "rules.time_breakdown": "EventClass TimeBreakdown",
    "source.item_table": "Item",
    "source.parquet.paths": "Part",
    "storage.base": "FileInfo",
}
CLASSES = frozenset(f"sm_profiler.{module}:{name}" for module, names in _LISTED.items() for name in names.split())
FREE_BYTES, MAX_TIMES = 64 << 20, 64  # unpacked: so much, and so many times what arrived
COUNTED_BYTES = 1 << 20  # MessagePack of less than this cannot take much memory
FREE_ELEMENTS = 1 << 20  # and one more for each byte that arrived
_HEAD = 8
_LIMIT = 1 << 63
_PLAIN = (str, float, bytes, type(None), bool)
_KINDS = "fiub"
_Write: TypeAlias = Callable[[NDArray[Any]], int]
_Read: TypeAlias = Callable[["np.dtype[Any]", list[int], int], NDArray[Any]]


def encode(value: Any) -> bytes:
    """Return an object as bytes.

    Raises:
        TypeError: it holds something that is neither data nor of a class of our own.
    """
    arrays, size = list[bytes](), 0

    def apart(array: NDArray[Any]) -> int:
        nonlocal size
        arrays.append(np.ascontiguousarray(array).tobytes())
        size += len(arrays[-1])
        return size - len(arrays[-1])

    rest = msgspec.msgpack.encode(_packed(value, apart))
    return b"".join((len(rest).to_bytes(_HEAD, "little"), rest, *arrays))


def write(value: Any, file: IO[bytes]) -> int:
    """Write an object to a file, its arrays without a copy of them in memory; return where it begins, for `read`.

    Raises:
        TypeError: it holds something that is neither data nor of a class of our own.
        OSError: the file cannot be written.
    """

    def apart(array: NDArray[Any]) -> int:
        at = file.tell()
        file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        return at

    rest = msgspec.msgpack.encode(_packed(value, apart))
    at = file.tell()
    file.write(len(rest).to_bytes(8, "little") + rest)
    return at


def read(file: IO[bytes], at: int) -> Any:
    """Return an object from a file that `write` wrote.

    Raises:
        ValueError: the bytes are damaged.
    """

    def apart(kind: np.dtype[Any], shape: list[int], place: int) -> NDArray[Any]:
        array = np.empty(shape, kind)
        file.seek(place)
        if file.readinto(array.reshape(-1).view(np.uint8).data) != array.nbytes:  # type: ignore[attr-defined]
            raise ValueError("not a state of sm-profiler: too short")
        return array

    file.seek(at)
    return _decoded(file.read(int.from_bytes(file.read(_HEAD), "little")), apart, _OURS)


def decode(data: bytes, *, arrived: int | None = None, report: bool = False) -> Any:
    """Return the object again.

    Args:
        data: the bytes.
        arrived: how many bytes they were before they were unpacked.
        report: whether they may also be a report, which can hold objects of any data class of its packages.

    Raises:
        ValueError: the bytes are damaged, or have more elements than such an object can have.
    """
    size = int.from_bytes(data[:_HEAD], "little")
    rest, arrays = data[_HEAD : _HEAD + size], memoryview(data)[_HEAD + size :]
    if size != len(rest):
        raise ValueError("not a state of sm-profiler: too short")
    if size > COUNTED_BYTES:
        check_elements(rest, FREE_ELEMENTS + (len(data) if arrived is None else arrived))
    left = len(arrays)

    def apart(kind: np.dtype[Any], shape: list[int], place: int) -> NDArray[Any]:
        nonlocal left
        count = math.prod(shape)
        left -= count * kind.itemsize
        if min(shape, default=0) < 0 or left < 0:  # arrays do not share bytes
            raise ValueError("not a state of sm-profiler: too short")
        return np.frombuffer(arrays, kind, count, place).reshape(shape).copy() if count else np.empty(shape, kind)

    return _decoded(rest, apart, _REPORTS if report else ())


def unpacked(data: bytes) -> bytes:
    """Return what zlib compressed, up to a multiple of its size that no state has.

    Raises:
        ValueError: it is damaged, or larger.
    """
    unpack = zlib.decompressobj()
    try:
        found = unpack.decompress(data, FREE_BYTES + MAX_TIMES * len(data))
    except zlib.error as error:
        raise ValueError(f"not a state of sm-profiler: {error}") from error
    if not unpack.eof:
        raise ValueError("not a state of sm-profiler: cut off, or too large")
    return found


def _decoded(data: bytes, apart: _Read, packages: tuple[str, ...]) -> Any:
    try:
        packed = msgspec.msgpack.decode(data)
        del data
        return _Unpacking(apart, packages)(packed)
    except (
        msgspec.MsgspecError, TypeError, AttributeError, KeyError, ImportError, IndexError, RecursionError, OverflowError,
    ) as error:  # fmt: skip
        raise ValueError(f"not a state of sm-profiler: {error}") from error


def _packed(value: Any, apart: _Write) -> Any:  # one a type
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is int:
        return value if -_LIMIT <= value < _LIMIT else ["n", str(value)]
    if isinstance(value, np.ndarray):
        return _array(value, apart)
    if isinstance(value, Enum):
        return ["e", _name_of(kind), value.name]
    if isinstance(value, np.generic):
        return ["g", value.dtype.str, value.tobytes()]
    if isinstance(value, float):  # with a reason, which is of the code, not of the data
        return float(value)
    if kind in {list, tuple}:
        return ["l" if kind is list else "t", [_packed(one, apart) for one in value]]
    if kind in {set, frozenset}:  # in an order that does not depend on how the set was made
        return ["s" if kind is set else "f", sorted((_packed(one, apart) for one in value), key=msgspec.msgpack.encode)]
    if kind in {dict, Counter}:
        pairs = [[_packed(key, apart), _packed(one, apart)] for key, one in value.items()]
        return ["d" if kind is dict else "c", pairs]
    name = _name_of(kind)
    own = (
        [[_packed(key, apart), _packed(one, apart)] for key, one in value.items()] if isinstance(value, dict) else None
    )
    fields = {key: getattr(value, key) for key in _fields(value)}
    return ["o", name, [[key, _packed(one, apart)] for key, one in fields.items()], own]


def _name_of(kind: type) -> str:
    name = f"{kind.__module__}:{kind.__qualname__}"
    if not name.startswith(_OURS):
        raise TypeError(f"an object of {name}")
    return name


def _array(array: NDArray[Any], apart: _Write) -> list[Any]:
    if array.dtype.kind not in _KINDS:
        raise TypeError(f"an array of {array.dtype}")
    return ["r", array.dtype.str, list(array.shape), apart(array)]


def _fields(value: Any) -> list[str]:
    if attrs.has(type(value)):
        return [field.name for field in attrs.fields(type(value)) if hasattr(value, field.name)]
    return list(getattr(value, "__struct_fields__", getattr(value, "__dict__", ())))


class _Unpacking:
    """Returns objects from what MessagePack holds.

    Args:
        apart: returns an array.
        packages: whose data classes are accepted besides CLASSES.
    """

    def __init__(self, apart: _Read, packages: tuple[str, ...]) -> None:
        self._apart, self._packages = apart, packages

    def __call__(self, value: Any) -> Any:  # one a type
        """Return an object."""
        if not isinstance(value, list):
            return value
        tag = value[0]
        if tag == "n":
            return int(value[1])
        if tag == "r":
            return self._apart(_dtype(value[1]), value[2], value[3])
        if tag == "g":
            return np.frombuffer(value[2], _dtype(value[1]))[0]
        if tag == "d":
            return {self(key): self(one) for key, one in value[1]}
        if tag == "c":
            return Counter({self(key): self(one) for key, one in value[1]})
        if tag == "e":
            return self._class(value[1])[value[2]]
        if tag == "o":
            return self._object(value)
        return {"l": list, "t": tuple, "s": set, "f": frozenset}[tag](self(one) for one in value[1])

    def _object(self, value: list[Any]) -> Any:
        found = self._class(value[1])
        if issubclass(found, msgspec.Struct):
            return found(**{key: self(one) for key, one in value[2]})
        made: Any = object.__new__(found) if not issubclass(found, dict) else dict.__new__(found)
        for key, one in value[2]:
            object.__setattr__(made, key, self(one))
        if value[3] is not None:
            made.update({self(key): self(one) for key, one in value[3]})
        return made

    def _class(self, where: str) -> Any:
        if where not in CLASSES and not where.startswith(self._packages):
            raise ValueError(f"an object of {where}")
        module, _, name = where.partition(":")
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        if not isinstance(found, type) or found.__module__ != module:
            raise ValueError(f"an object of {where}")
        return found


def _dtype(name: str) -> Any:
    kind = np.dtype(name)
    if kind.kind not in _KINDS:
        raise ValueError(f"an array of {name}")
    return kind
