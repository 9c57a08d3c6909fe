"""States are unpacked without keeping what they were unpacked from."""

import tracemalloc

import numpy as np

from sm_profiler.report.scaling import codec

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
