"""Columns filled row by row into their place: the same as concatenated tables."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm_profiler.formats.columns import Category, SystemColumns
from sm_profiler.source.parse import ColumnFiller

TEXTS = st.lists(st.sampled_from("abcde"), max_size=6)


def table(texts):
    one = Category.of(texts)
    numbers = np.arange(len(texts), dtype=np.float64)
    return SystemColumns(numbers, numbers / 3, one, one[::-1], one, Category.of(reversed(texts)))


@given(st.lists(TEXTS, max_size=8), st.integers(0, 40))
@settings(max_examples=50, deadline=None)
def test_equals_concatenation(parts, expected):
    filler = ColumnFiller(SystemColumns, expected)
    tables = [table(texts) for texts in parts]
    for one in tables:  # as two spans of a table
        filler.add(one, 0, len(one) // 2)
        filler.add(one, len(one) // 2)
    found, whole = filler.columns(), SystemColumns.concat(tables)
    for field in SystemColumns.__attrs_attrs__:
        a, b = getattr(found, field.name), getattr(whole, field.name)
        if isinstance(a, Category):
            assert a.codes.dtype == np.int32
            a, b = a.decode(), b.decode()
        np.testing.assert_array_equal(a, b)


def test_promised_rows_take_no_memory_at_first():
    filler = ColumnFiller(SystemColumns, 1 << 60)
    filler.add(table(["a", "b"]))
    assert len(filler.columns()) == 2


@pytest.mark.parametrize("rows", [0, 1])
def test_more_rows_than_promised(rows):
    filler = ColumnFiller(SystemColumns, rows)
    for _ in range(3):
        filler.add(table(["a", "b", "a"]))
    assert filler.columns().name.decode().tolist() == ["a", "b", "a"] * 3
