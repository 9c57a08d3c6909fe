"""Text columns of frames, with and without repetitions, and frames that reuse the memory of their columns."""

import copy

import numpy as np
import pandas as pd
import pytest

from sm_profiler.analysis import PandasFrame
from sm_profiler.analysis.frames import framework_frame, system_frame
from sm_profiler.analysis.times import category_texts, text_time, text_times
from sm_profiler.formats.columns import Category, EventColumns, SystemColumns

RANDOM = np.random.default_rng(5)
TEXTS = ("cpu0", "", "é", "a longer text than the others")
TICK = RANDOM.integers(0, 4, 111)
CODES = {
    "none": np.empty(0),
    "few": np.array([2, 1, 0]),
    "random": RANDOM.integers(0, 4, 150_001),
    "one text": np.full(40_000, 3),
    "runs": np.repeat(RANDOM.integers(0, 4, 9), [5000, 1, 20_000, 7000, 3, 900, 60_000, 4, 2000]),
    "the same tick after tick": np.tile(TICK, 700),
    "a tick cut short now and then": np.concatenate([np.tile(TICK, 500)[: -int(cut)] for cut in RANDOM.integers(1, 99, 5)]),
    "regular, then no more": np.concatenate([np.tile(TICK, 300), RANDOM.integers(0, 4, 100_000)]),
}  # fmt: skip


@pytest.mark.parametrize("name", CODES)
def test_text_column_equals_the_category(name):
    category = Category(CODES[name].astype(np.int32), TEXTS)
    column = pd.Series(category_texts(category))
    assert column.tolist() == category.decode().tolist()
    order = RANDOM.permutation(len(column))
    assert column.iloc[order].tolist() == category.decode()[order].tolist()
    assert column[column == "é"].index.tolist() == np.flatnonzero(category.mask("é")).tolist()


@pytest.mark.parametrize("name", ["one text", "runs", "the same tick after tick"])
def test_repetitions_share_memory(name):
    def held(times):
        column = category_texts(Category(np.tile(CODES[name], times).astype(np.int32), TEXTS))
        buffers = [buffer for chunk in column._pa_array.chunks for buffer in chunk.buffers() if buffer is not None]
        return sum({buffer.address: buffer.size for buffer in buffers}.values())

    assert held(20) <= 1.1 * held(10)


def test_text_column_of_more_than_256_values():
    category = Category(np.tile(np.arange(1000, dtype=np.int32), 60), tuple(map(str, range(1000))))
    assert list(category_texts(category)) == category.decode().tolist()


def test_formats_times_in_several_chunks():
    times = 1_700_000_000_000_000 + np.arange(0, 200_000 * 977, 977)
    shown = text_times(times)
    assert len(shown) == len(times)
    for row in (0, 65_535, 65_536, 131_072, 199_999):
        assert shown[row].as_py() == text_time(int(times[row]))


@pytest.mark.parametrize("kind", [np.int64, np.float64])
def test_formats_runs_of_equal_times(kind):
    moments = 1_700_000_000_000_000 + np.cumsum(RANDOM.integers(1, 10**6, 9_000))
    times = np.repeat(moments, RANDOM.integers(1, 30, len(moments))).astype(kind)
    texts = dict(zip(moments.tolist(), text_times(moments).to_pylist(), strict=True))
    assert text_times(times).to_pylist() == [texts[int(one)] for one in times]
    assert text_times(times[:1]).to_pylist() == [texts[int(times[0])]]
    assert text_times(times[:0]).to_pylist() == []


def columns(count, whole):
    texts = [Category(RANDOM.integers(0, 4, count).astype(np.int32), TEXTS) for _ in range(4)]
    start = 1.7e15 + np.sort(RANDOM.integers(0, 10**9, count)) / (1 if whole else 4)
    numbers = [RANDOM.integers(-1, 3, count) for _ in range(3)]
    small, pin = np.full(count, -1, np.int32), np.full(count, -1, np.int8)
    none = Category(np.zeros(count, np.int32), ("",))
    events = EventColumns(
        start, np.round(RANDOM.uniform(0, 1e6, count)), *texts, *numbers, small, small.copy(), pin, none
    )
    return events, SystemColumns(start / 1e6, RANDOM.uniform(0, 100, count), *texts)  # fmt: skip


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("count", [0, 3, 70_000])
def test_frames_that_reuse_memory_are_the_same(count, whole):
    events, system = columns(count, whole)
    for make, table in ((framework_frame, events), (system_frame, system)):
        kept = copy.deepcopy(table)
        frame = make(table, 1_700_000_000_000_000)
        for field in table.__attrs_attrs__:  # who asked keeps what was there
            before, after = (getattr(each, field.name) for each in (kept, table))
            assert np.array_equal(getattr(before, "codes", before), getattr(after, "codes", after))
        pd.testing.assert_frame_equal(make(table, 1_700_000_000_000_000, reuse=True), frame)


def test_writing_to_a_frame_does_not_change_the_next_one(tmp_path):
    folder = tmp_path / "system/incremental/2023111422"
    folder.mkdir(parents=True)
    line = '{"Type":"cpu","Name":"cpu0","Dimension":"CPUUtilization","Value":%d,"NodeId":"algo-1","Timestamp":1700000000.%d}'
    (folder / "1700000000.algo-1.json").write_text("\n".join(line % (row, row) for row in range(5)))
    for keep in (True, False):
        profile = PandasFrame(str(tmp_path), use_in_memory_cache=keep)
        frame = profile.get_all_system_metrics()
        frame.loc[:, "value"] = -1.0
        frame.loc[:, "timestamp_us"] = 0
        again = profile.get_all_system_metrics()
        assert again["value"].tolist() == [0, 1, 2, 3, 4]
        assert (again["timestamp_us"] >= 0).all()
        assert again["timestamp"].is_unique
