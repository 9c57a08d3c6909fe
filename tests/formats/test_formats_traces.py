import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm_profiler.formats import trace_reader
from sm_profiler.formats.trace_reader import read_trace
from sm_profiler.formats.trace_rows import event_columns, join_loose, parse_arguments
from sm_profiler.source import open_source

DATA = Path(__file__).parents[1] / "data" / "formats"
NUMBERS = st.one_of(st.integers(0, 10**10), st.floats(0, 1e10))
PIDS = st.one_of(st.integers(0, 3), st.sampled_from(["Spans", "Traces", None]))
ARGS = st.one_of(
    st.none(),
    st.fixed_dictionaries({}, optional={
        "pid": st.one_of(st.integers(-5, 2**70), st.just("905")), "step_num": st.one_of(st.integers(0, 99), st.sampled_from(["7", "x", ""])),
        "thread_id": st.integers(0, 2**64), "tid": st.integers(0, 9), "worker_id": st.integers(-1, 2**40), "num_workers": st.integers(0, 8),
        "pin_memory": st.sampled_from([True, False, None, 1]), "device": st.sampled_from(["cpu", 0]), "deep": st.just({"a": [1, None]}),
    }),
    st.sampled_from([[1], "text", 5]),
)  # fmt: skip
SPANS = st.fixed_dictionaries({"ph": st.just("X"), "name": st.sampled_from(["a", "b", "ä"]), "pid": PIDS, "ts": NUMBERS, "dur": NUMBERS},
                              optional={"args": ARGS, "tid": st.one_of(st.integers(0, 5), st.just("stream 7")), "cat": st.just("cpu_op")})  # fmt: skip
NAMES = st.fixed_dictionaries({"ph": st.just("M"), "name": st.just("process_name"), "pid": st.integers(0, 3),
                               "args": st.fixed_dictionaries({"name": st.sampled_from(["Forward", "Step"])})})  # fmt: skip
START = {
    "ph": "M",
    "name": "process_name",
    "pid": 0,
    "args": {"start_time_since_epoch_in_micros": 1_700_000_000_000_000},
}
COLUMNS = ("start_us", "duration_us", "step", "pid", "tid", "worker_id", "num_workers", "pin_memory", "track")


def same(one, other):
    for column in COLUMNS:
        np.testing.assert_array_equal(getattr(one, column), getattr(other, column))
    for column in ("name", "phase", "node", "kind", "args"):
        assert getattr(one, column).decode().tolist() == getattr(other, column).decode().tolist()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(SPANS, SPANS, NAMES), max_size=12))
def test_conversion_by_column_and_by_record_agree(records):
    data = json.dumps([START, *records]).encode()
    fast, fast_outcome = read_trace(data, "algo-1-0", "k")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_reader, "_by_column", lambda _events, _fold: None)
        patient, outcome = read_trace(data, "algo-1-0", "k")
    assert fast_outcome == outcome
    same(event_columns([fast]), event_columns([patient]))
    assert len(fast.start_us) == sum(record["ph"] == "X" for record in records) - outcome.lost


def test_reads_a_pytorch_trace():
    source = open_source(DATA / "pytorch_kineto", cache=False)
    events = source.events()
    assert [quality.status for quality in source.quality()] == ["read"]
    spans = events[~events.instants]
    assert len(spans) == 54
    assert {"aten::linear", "aten::sum"} <= set(spans.name.decode())
    assert 1_795_260_000e6 < spans.start_us.min() < spans.end_us.max() < 1_795_261_000e6  # the morning of 2026-11-21
    assert set(events.kind.decode()) == {"trace"}
    assert spans.tid.max() > 0
    linear = json.loads(spans.args.decode()[spans.name.mask("aten::linear")][0])
    assert linear["Input Dims"][0] == [2, 4]


def test_reads_a_trace_with_absolute_times():
    document = {
        "traceEvents": [{"ph": "X", "name": "a", "pid": 1, "tid": 2, "ts": 1_700_000_000_000_001.5, "dur": 2.5}],
        "baseTimeNanoseconds": 5,
    }
    rows, _ = read_trace(gzip.compress(json.dumps(document).encode()), "n", "trace", 1_600_000_000_000_000)
    assert rows.start_us.tolist() == [1_700_000_000_000_001.5]
    assert rows.duration_us.tolist() == [2.5]


def test_takes_the_start_of_a_tensorflow_trace_from_its_metadata_file():
    events = open_source(DATA / "tfprofiler_timeline_traces", cache=False).events()
    assert len(events) == 798
    assert 1_596_659_864_545_103 <= events.start_us.min() < events.end_us.max() < 1_596_659_864_854_168 + 1e6
    assert set(events.node.decode()) == {"8c859046be41"}
    assert set(events.phase.decode()) == {"/host:CPU"}


def test_takes_the_start_of_a_trace_without_metadata_from_its_folder():
    source = open_source(DATA / "tfprofiler_local_missing_metadata", cache=False)
    assert len(source.events()) == 256
    (quality,) = source.quality()
    assert (quality.status, quality.lost) == ("repaired", 0)
    assert "start time unknown" in quality.reason
    assert source.events().start_us.min() // 3.6e9 * 3.6e9 == 1_596_632_400_000_000  # 2020-08-05 13:00


def test_joins_begins_and_ends_within_a_file():
    source = open_source(DATA / "horovod_timeline_traces", cache=False)
    events = source.events()
    assert set(events.kind.decode()) == {"horovod_timeline"}
    assert (events.duration_us >= 0).all()
    assert {quality.lost for quality in source.quality()} == {0, 2}


def trace(*records):
    return read_trace(json.dumps([START, *records]).encode(), "algo-1-0", "horovod_timeline")[0]


def test_joins_ends_with_begins_of_earlier_files():
    name = {"ph": "M", "name": "process_name", "pid": 4, "args": {"name": "gradient"}}
    other = {"ph": "M", "name": "process_name", "pid": 9, "args": {"name": "gradient"}}
    first = trace(
        name,
        {"ph": "B", "name": "outer", "pid": 4, "ts": 1},
        {"ph": "B", "name": "inner", "pid": 4, "ts": 2, "args": {"step_num": 3}},
    )
    second = trace(
        other, {"ph": "E", "pid": 9, "ts": 10}, {"ph": "E", "pid": 9, "ts": 12}, {"ph": "E", "pid": 9, "ts": 13}
    )
    stacks = {}
    assert join_loose(first, stacks) == (None, [], 0)
    joined, backwards, unmatched = join_loose(second, stacks)
    columns = event_columns([joined])
    assert columns.name.decode().tolist() == ["inner", "outer"]
    assert columns.duration_us.tolist() == [8, 11]
    assert columns.step.tolist() == [3, -1]
    assert (backwards, unmatched) == ([], 1)
    assert not any(stacks.values())


def test_separates_own_metadata_from_events():
    record = {"name": "sm_profiler/process", "ph": "M", "pid": 0, "args": {"version": "1.0", "rank": 0}}
    rows = trace(record)
    assert rows.metadata == (record | {"node": "algo-1-0"},)
    assert len(rows.start_us) == 0


@pytest.mark.parametrize(("text", "expected"), [
    (b'{"pid": 905, "step_num": "12"}', (12, 905, -1, -1, -1, -1, "")),
    (b'{"tid": 1, "step_num": 5, "device": "cpu"}', (5, -1, 1, -1, -1, -1, '{"tid":1,"device":"cpu"}')),
    (b'{"pid": 27, "worker_id": 3, "num_workers": 4, "pin_memory": true}', (-1, 27, -1, 3, 4, 1, "")),
    (b'{"step_num": 99999999999999999999}', (-1, -1, -1, -1, -1, -1, '{"step_num":99999999999999999999}')),
    (b"", (-1, -1, -1, -1, -1, -1, "")),
])  # fmt: skip
def test_parses_arguments(text, expected):
    assert parse_arguments(text) == expected
