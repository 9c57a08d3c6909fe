"""States of folds as bytes, without pickle: only data, and objects of the classes that are listed here.

The bytes are MessagePack. The first element of each list is a tag for the type of the object, and arrays are extensions.
"""

from __future__ import annotations

import sys
import zlib
from collections import Counter
from enum import Enum
from functools import cache
from importlib import import_module
from typing import Any

import attrs
import msgspec
import numpy as np

from sm_profiler.formats.bounds import COUNTED_BYTES, FREE_ELEMENTS, check_elements

_PACKAGES = tuple(f"sm_profiler.{name}." for name in ("formats", "rules", "metrics", "report", "diagnosis"))
# What states contain; anything else is refused.
_LISTED = {
    "formats.columns": "Category",
    "metrics.parts": "PartTable",
    "metrics.sample_fold": "Course Place Sampled",
    "metrics.step_chunks": "Chunk",
    "metrics.step_fold": "LoaderSettings",
    "metrics.step_rows": "StepRows",
    "metrics.step_sample": "StepSample Totals",
    "metrics.system_fold": "Buckets Usage Use",
    "rules.bottleneck": "_Totals _WindowCounts",
    "rules.dataloader": "_Waits",
    "rules.gpu_rules": "BatchSizeParameters GPUMemoryIncreaseParameters LowGPUUtilizationParameters RollingSeries "
    "_Histogram _Increase _LowUtilization _Underutilized",
    "rules.overall": "_Loop",
    "rules.statistics": "EventClass QuantileSketch TimeBreakdown",
    "rules.step_rules": "_LongStep _Phase",
}
FREE_BYTES, MAX_TIMES = 64 << 20, 64  # unpacked: so much, and so many times what arrived
_LIMIT = 1 << 63
_PLAIN = (str, float, bytes, type(None), bool)
_KINDS = "fiub"
_SEQUENCES: dict[str, Any] = {"l": list, "t": tuple, "s": set, "f": frozenset}
_TAGS = {kind: tag for tag, kind in _SEQUENCES.items()}


def encode(value: Any) -> bytes:
    """Return an object as bytes.

    Raises:
        TypeError: it holds something that is neither data nor of a class of our own.
    """
    return msgspec.msgpack.encode(_packed(value))


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


def decode(data: bytes, *, arrived: int | None = None, report: bool = False) -> Any:
    """Return the object again.

    Args:
        data: the bytes.
        arrived: how many bytes they were before they were unpacked.
        report: whether they may also be a report, which can hold objects of any data class that its packages have defined.

    Raises:
        ValueError: the bytes are damaged, or have more elements than such an object can have.
    """
    try:
        if len(data) > COUNTED_BYTES:
            check_elements(data, FREE_ELEMENTS + (len(data) if arrived is None else arrived))
        return _Unpacking(report=report)(msgspec.msgpack.decode(data, ext_hook=_bytes_of))
    except (
        msgspec.MsgspecError, ValueError, TypeError, AttributeError, KeyError, IndexError, RecursionError, OverflowError,
    ) as error:  # fmt: skip
        raise ValueError(f"not a state of sm-profiler: {error}") from error


def _bytes_of(kind: int, data: memoryview) -> memoryview:
    del kind
    return data


def _packed(value: Any) -> Any:  # by type
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is int:
        return value if -_LIMIT <= value < _LIMIT else ["n", str(value)]
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in _KINDS:
            raise TypeError(f"an array of {value.dtype}")
        flat = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        return ["r", value.dtype.str, value.shape, msgspec.msgpack.Ext(0, flat.data)]
    if isinstance(value, Enum):
        return ["e", _name_of(kind), value.name]
    if isinstance(value, np.generic):
        return ["g", value.dtype.str, value.tobytes()]
    if isinstance(value, float):  # with a reason, which is of the code, not of the data
        return float(value)
    if kind in {set, frozenset}:  # in an order that does not depend on how the set was made
        return [_TAGS[kind], *sorted(map(_packed, value), key=msgspec.msgpack.encode)]
    if kind in _TAGS:
        return [_TAGS[kind], *map(_packed, value)]
    if kind in {dict, Counter}:
        return ["d" if kind is dict else "c", *_pairs(value)]
    own = _pairs(value) if isinstance(value, dict) else None
    return ["o", _name_of(kind), {name: _packed(getattr(value, name)) for name in _fields(value)}, own]


def _pairs(value: dict[Any, Any]) -> list[Any]:
    return [[_packed(key), _packed(each)] for key, each in value.items()]


def _name_of(kind: type) -> str:
    name = f"{kind.__module__}:{kind.__qualname__}"
    if not name.startswith(_PACKAGES):
        raise TypeError(f"an object of {name}")
    return name


def _fields(value: Any) -> list[str]:
    if attrs.has(type(value)):
        return [field.name for field in attrs.fields(type(value)) if hasattr(value, field.name)]
    return list(getattr(value, "__struct_fields__", getattr(value, "__dict__", ())))


@cache
def _classes() -> dict[str, type]:
    """Return the classes of states by name."""
    return {
        f"sm_profiler.{module}:{name}": getattr(import_module(f"sm_profiler.{module}"), name)
        for module, names in _LISTED.items()
        for name in names.split()
    }


class _Unpacking:
    """Returns objects from what MessagePack holds."""

    def __init__(self, *, report: bool) -> None:
        self._report = report

    def __call__(self, value: Any) -> Any:  # by tag
        """Return an object."""
        if not isinstance(value, list):
            return value
        tag, *rest = value
        if tag == "n":
            return int(rest[0])
        if tag == "r":
            return np.frombuffer(rest[2], _dtype(rest[0])).reshape(rest[1]).copy()
        if tag == "g":
            return np.frombuffer(rest[1], _dtype(rest[0]))[0]
        if tag in {"d", "c"}:
            return (dict if tag == "d" else Counter)({self(key): self(each) for key, each in rest})
        if tag == "e":
            return self._class(rest[0])[rest[1]]
        if tag == "o":
            return self._object(*rest)
        return _SEQUENCES[tag](map(self, rest))

    def _object(self, name: str, fields: dict[str, Any], own: list[Any] | None) -> Any:
        found = self._class(name)
        values = {key: self(each) for key, each in fields.items()}
        if issubclass(found, msgspec.Struct):
            return found(**values)
        made: Any = (dict if issubclass(found, dict) else object).__new__(found)
        for key, each in values.items():
            object.__setattr__(made, key, each)
        if own is not None:
            made.update({self(key): self(each) for key, each in own})
        return made

    def _class(self, name: str) -> Any:
        found = _classes().get(name)
        if found is None and self._report and name.startswith(_PACKAGES):
            module, _, own_name = name.partition(":")
            found = getattr(sys.modules.get(module), own_name, None)
            if not isinstance(found, type) or found.__module__ != module or not _is_data(found):
                found = None
        if found is None:
            raise ValueError(f"an object of {name}")
        return found


def _is_data(kind: type) -> bool:
    return attrs.has(kind) or issubclass(kind, (Enum, msgspec.Struct, dict))


def _dtype(name: str) -> Any:
    kind = np.dtype(name)
    if kind.kind not in _KINDS:
        raise ValueError(f"an array of {name}")
    return kind
