"""States of folds as bytes, without pickle: only data, and objects of our own classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import Enum
from importlib import import_module
from typing import IO, Any, TypeAlias

import attrs
import msgspec
import numpy as np
from numpy.typing import NDArray

_OURS = tuple(f"sm_profiler.{name}." for name in ("formats", "storage", "source", "rules", "report", "compact"))
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
    return msgspec.msgpack.encode(_packed(value))


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
    return decode(file.read(int.from_bytes(file.read(8), "little")), apart)


def decode(data: bytes, apart: _Read | None = None) -> Any:
    """Return the object again.

    Raises:
        ValueError: the bytes are damaged.
    """
    try:
        packed = msgspec.msgpack.decode(data)
        del data  # it is as large as the object
        return _unpacked(packed, apart)
    except (msgspec.MsgspecError, TypeError, AttributeError, KeyError, ImportError, IndexError) as error:
        raise ValueError(f"not a state of sm-profiler: {error}") from error


def _packed(value: Any, apart: _Write | None = None) -> Any:  # noqa: PLR0911 - one a type
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


def _array(array: NDArray[Any], apart: _Write | None) -> list[Any]:
    if array.dtype.kind not in _KINDS:
        raise TypeError(f"an array of {array.dtype}")
    if apart is not None:
        return ["r", array.dtype.str, list(array.shape), apart(array)]
    return ["a", array.dtype.str, list(array.shape), np.ascontiguousarray(array).tobytes()]


def _fields(value: Any) -> list[str]:
    if attrs.has(type(value)):
        return [field.name for field in attrs.fields(type(value)) if hasattr(value, field.name)]
    return list(getattr(value, "__dict__", {}))


def _unpacked(value: Any, apart: _Read | None = None) -> Any:  # noqa: PLR0911 - one a type
    if not isinstance(value, list):
        return value
    tag = value[0]
    if tag == "n":
        return int(value[1])
    if tag == "a":
        array = np.frombuffer(value[3], _dtype(value[1])).reshape(value[2]).copy()
        value[3] = b""  # it is not needed twice in memory
        return array
    if tag == "r" and apart is not None:
        return apart(_dtype(value[1]), value[2], value[3])
    if tag == "g":
        return np.frombuffer(value[2], _dtype(value[1]))[0]
    if tag == "d":
        return {_unpacked(key, apart): _unpacked(one, apart) for key, one in value[1]}
    if tag == "c":
        return Counter({_unpacked(key, apart): _unpacked(one, apart) for key, one in value[1]})
    if tag == "e":
        return _class(value[1])[value[2]]
    if tag == "o":
        return _object(value, apart)
    return {"l": list, "t": tuple, "s": set, "f": frozenset}[tag](_unpacked(one, apart) for one in value[1])


def _dtype(name: str) -> Any:
    kind = np.dtype(name)
    if kind.kind not in _KINDS:
        raise ValueError(f"an array of {name}")
    return kind


def _class(where: str) -> Any:
    module, _, name = where.partition(":")
    if not module.startswith(_OURS):
        raise ValueError(f"an object of {where}")
    found: Any = import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not isinstance(found, type) or found.__module__ != module:
        raise ValueError(f"an object of {where}")
    return found


def _object(value: list[Any], apart: _Read | None) -> Any:
    found = _class(value[1])
    made: Any = object.__new__(found) if not issubclass(found, dict) else dict.__new__(found)
    for key, one in value[2]:
        object.__setattr__(made, key, _unpacked(one, apart))
    if value[3] is not None:
        made.update({_unpacked(key, apart): _unpacked(one, apart) for key, one in value[3]})
    return made
