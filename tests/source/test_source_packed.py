"""Packed rows are the rows that were packed."""

import attrs
import numpy as np
import pytest

from sm_profiler.formats.columns import Category, EventColumns
from sm_profiler.formats.packed import Packed


def columns(count):
    numbers = np.arange(count)
    text = Category((numbers % 3).astype(np.int32), ("a", "b", "c"))
    return EventColumns(
        numbers * 1e6, numbers / 7, text, text, text, Category(np.zeros(count, np.int32), ("only",)), np.where(numbers, (1 << 60) + numbers, -1), -numbers,
        np.full(count, -1), np.full(count, -1, np.int32), (numbers % 5 - 1).astype(np.int32), np.full(count, -1, np.int8), text,
    )  # fmt: skip


@pytest.mark.parametrize("rows", [slice(0, 400), slice(17, 300), slice(5, 5)])
def test_a_slice_has_the_same_rows_and_types(rows):
    whole = columns(400)
    packed, expected = Packed(whole)[rows], whole[rows]
    for field in attrs.fields(EventColumns):
        found, wanted = (getattr(one, field.name) for one in (packed, expected))
        if isinstance(wanted, Category):
            assert found.values == wanted.values
            found, wanted = found.codes, wanted.codes
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)
    assert len(Packed(whole)) == 400


def test_no_rows():
    assert len(Packed(columns(0))[0:0]) == 0
