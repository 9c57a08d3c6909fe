"""States are unpacked without keeping what they were unpacked from."""

import tracemalloc
import zlib

import msgspec
import numpy as np
import pytest

from sm_profiler.errors import SourceError
from sm_profiler.formats.bounds import check_elements
from sm_profiler.metrics.scaling import codec, part
from tests.support.memory import peak_of

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


@pytest.mark.first(2)
@pytest.mark.parametrize("element", [b"\x90", b"\xc0", b"\xa1x", b"\x92\xa1l\x90", b"\x80", b"\xcd\xff\xff"])
def test_a_bomb_of_small_elements_takes_no_more_than_a_multiple_of_what_arrived(element):
    count = 4 << 20
    bomb = zlib.compress(b"\xdd" + count.to_bytes(4, "big") + element * count)

    def work():
        with pytest.raises(SourceError, match="too many elements"):
            part.decode_slice(bomb, {})

    assert peak_of(work) < 3 * count * len(element) + (4 << 20)


@pytest.mark.parametrize("content", [b"\x90", bytes(1)])
def test_a_bomb_of_bytes_is_not_unpacked(content, monkeypatch):
    monkeypatch.setattr(codec, "FREE_BYTES", 1 << 16)
    bomb = zlib.compress(content * (32 << 20))

    def work():
        with pytest.raises(SourceError, match="too large"):
            part.decode_slice(bomb, {})

    assert peak_of(work) < 8 << 20


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
