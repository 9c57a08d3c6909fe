"""Packed rows are the rows that were packed."""

import attrs
import numpy as np
import pytest

from sm_profiler.formats.columns import Category, EventColumns, Packed, SystemColumns, gather


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


def system(timestamps, values):
    text = Category(np.zeros(len(values), np.int32), ("a",))
    return SystemColumns(np.asarray(timestamps, np.float64), np.asarray(values, np.float64), text, text, text, text)


@pytest.mark.parametrize(
    "values",
    [
        [3, 80, 97],
        [0.25, 1e15 + 0.75],
        [12.34, 56.07, 99.99],
        [-0.0, 1.0],
        [np.nan, 1.0],
        [np.inf, -np.inf],
        [1.7e18, 5e-324, 1 / 3],
        [-7.5, 2.25],
        [1e300, 1.0],
    ],
)
def test_numbers_keep_every_bit(values):
    times = 1_700_000_000 + np.arange(len(values)) * 0.500001
    packed = Packed(system(times, values))
    assert packed[:].value.tobytes() == np.asarray(values, np.float64).tobytes()
    assert packed.floats("timestamp").tobytes() == times.tobytes()


@pytest.mark.parametrize("step", [1.0, 0.25, 0.01, 1e-6])
def test_numbers_with_few_decimals_take_half_their_bytes(step):
    values = np.round(np.arange(1000) * 37 * step, 6)
    packed = Packed(system(1_700_000_000 + values, values))
    assert all(packed._columns[name].steps.itemsize <= 4 for name in ("timestamp", "value"))
    assert packed[:].value.tobytes() == values.tobytes()


def test_rows_of_several_tables_are_gathered_in_an_order():
    one, other = columns(40), columns(30)
    chosen = [(one, slice(3, 20)), (other, np.asarray([1, 4, 7]))]
    found = gather(
        EventColumns,
        [(Packed(table), rows) for table, rows in chosen],
        ("name", lambda name: np.argsort(name.codes, kind="stable")),
    )
    expected = EventColumns.concat([table[rows] for table, rows in chosen])
    expected = expected[np.argsort(expected.name.codes, kind="stable")]
    for field in attrs.fields(EventColumns):
        mine, wanted = (getattr(each, field.name) for each in (found, expected))
        mine, wanted = (each.decode() if isinstance(each, Category) else each for each in (mine, wanted))
        assert mine.dtype == wanted.dtype
        np.testing.assert_array_equal(mine, wanted)
    assert len(gather(EventColumns, [])) == 0
