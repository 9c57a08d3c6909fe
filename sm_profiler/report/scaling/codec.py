"""States of folds as bytes, without pickle: only data, and objects of our own classes."""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from typing import Any

import attrs
import msgspec
import numpy as np

_OURS = "sm_profiler."
_LIMIT = 1 << 63
_PLAIN = (str, float, bytes, type(None), bool)
_KINDS = "fiub"


def encode(value: Any) -> bytes:
    """Return an object as bytes.

    Raises:
        TypeError: it holds something that is neither data nor of a class of our own.
    """
    return msgspec.msgpack.encode(_packed(value))


def decode(data: bytes) -> Any:
    """Return the object again.

    Raises:
        ValueError: the bytes are damaged.
    """
    try:
        return _unpacked(msgspec.msgpack.decode(data))
    except (msgspec.MsgspecError, TypeError, AttributeError, KeyError, ImportError, IndexError) as error:
        raise ValueError(f"not a state of sm-profiler: {error}") from error


def _packed(value: Any) -> Any:  # noqa: PLR0911 - one a type
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is int:
        return value if -_LIMIT <= value < _LIMIT else ["n", str(value)]
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in _KINDS:
            raise TypeError(f"an array of {value.dtype}")
        return ["a", value.dtype.str, list(value.shape), np.ascontiguousarray(value).tobytes()]
    if isinstance(value, np.generic):
        return ["g", value.dtype.str, value.tobytes()]
    if kind in {list, tuple}:
        return ["l" if kind is list else "t", [_packed(one) for one in value]]
    if kind in {set, frozenset}:  # in an order that does not depend on how the set was made
        return ["s" if kind is set else "f", sorted((_packed(one) for one in value), key=msgspec.msgpack.encode)]
    if kind in {dict, Counter}:
        pairs = [[_packed(key), _packed(one)] for key, one in value.items()]
        return ["d" if kind is dict else "c", pairs]
    name = f"{kind.__module__}:{kind.__qualname__}"
    if not name.startswith(_OURS):
        raise TypeError(f"an object of {name}")
    own = [[_packed(key), _packed(one)] for key, one in value.items()] if isinstance(value, dict) else None
    fields = {key: getattr(value, key) for key in _fields(value)}
    return ["o", name, [[key, _packed(one)] for key, one in fields.items()], own]


def _fields(value: Any) -> list[str]:
    if attrs.has(type(value)):
        return [field.name for field in attrs.fields(type(value)) if hasattr(value, field.name)]
    return list(getattr(value, "__dict__", {}))


def _unpacked(value: Any) -> Any:  # noqa: PLR0911 - one a type
    if not isinstance(value, list):
        return value
    tag = value[0]
    if tag == "n":
        return int(value[1])
    if tag == "a":
        return np.frombuffer(value[3], _dtype(value[1])).reshape(value[2]).copy()
    if tag == "g":
        return np.frombuffer(value[2], _dtype(value[1]))[0]
    if tag == "d":
        return {_unpacked(key): _unpacked(one) for key, one in value[1]}
    if tag == "c":
        return Counter({_unpacked(key): _unpacked(one) for key, one in value[1]})
    if tag == "o":
        return _object(value)
    return {"l": list, "t": tuple, "s": set, "f": frozenset}[tag](_unpacked(one) for one in value[1])


def _dtype(name: str) -> Any:
    kind = np.dtype(name)
    if kind.kind not in _KINDS:
        raise ValueError(f"an array of {name}")
    return kind


def _object(value: list[Any]) -> Any:
    module, _, name = value[1].partition(":")
    if not module.startswith(_OURS):
        raise ValueError(f"an object of {value[1]}")
    found: Any = import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    if not isinstance(found, type) or found.__module__ != module:
        raise ValueError(f"an object of {value[1]}")
    made: Any = object.__new__(found) if not issubclass(found, dict) else dict.__new__(found)
    for key, one in value[2]:
        object.__setattr__(made, key, _unpacked(one))
    if value[3] is not None:
        made.update({_unpacked(key): _unpacked(one) for key, one in value[3]})
    return made
