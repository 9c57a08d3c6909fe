"""States are unpacked without keeping what they were unpacked from."""

import tracemalloc

import msgspec
import numpy as np
import pytest

from sm_profiler.formats.elements import check_elements
from sm_profiler.metrics.scaling import codec

ARRAYS, LENGTH = 16, 1 << 17


def test_a_state_is_not_in_memory_three_times():
    encoded = [codec.encode([np.full(LENGTH, float(number)) for number in range(ARRAYS)])]
    tracemalloc.start()
    encoded.append(bytes(bytearray(encoded.pop())))  # counted from here on
    found = codec.decode(encoded.pop())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [array[-1] for array in found] == list(range(ARRAYS))
    assert all(array.flags.writeable for array in found)
    assert peak < 2.5 * ARRAYS * LENGTH * 8


def test_numbers_keep_their_types():
    for number in (1.5, np.float64(1.5), np.float32(1.5), np.int64(3), 3):
        found = codec.decode(codec.encode(number))
        assert (type(found), found) == (type(number), number)


def test_elements_are_counted_as_they_are():
    values = [
        None, True, 1, -1, 200, 70000, 1 << 40, -200, -70000, -(1 << 40), 1.5, "x", "x" * 40, "x" * 300, "x" * 70000,
        b"x", b"x" * 300, b"x" * 70000, [1] * 20, [1] * 70000, {"a": 1}, {str(one): one for one in range(20)},
        msgspec.msgpack.Ext(1, b"x"), msgspec.msgpack.Ext(1, b"xyz"), msgspec.msgpack.Ext(1, b"x" * 300),
        msgspec.msgpack.Ext(1, b"x" * 70000),
    ]  # fmt: skip
    count = len(values) + 1 + 20 + 70000 + 2 + 40
    data = msgspec.msgpack.encode(values)
    check_elements(data, count)
    with pytest.raises(ValueError, match="too many"):
        check_elements(data, count - 1)
