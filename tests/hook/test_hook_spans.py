"""Spans written by the fast path are identical to spans written as events."""

import json
import os

from sm_profiler.formats.trace_writer import TraceEvent, TraceWriter, span_args

BASE_US = 1_700_000_000_000_000
OFFSET_NS = BASE_US * 1000 - 5_000_000_123
FIRST = TraceEvent("First", "first", BASE_US, 1)
SPANS = [
    ("Step:ModeKeys.TRAIN", "Step:ModeKeys.TRAIN", 5_000_000_000, 5_000_999_999, 0, None),
    ("Forward", 'N"et\\', 5_000_000_200, 5_000_300_877, 0, None),
    ("GC", "generation 2", 5_000_100_000, 5_002_000_000, -1, {"generation": 2, "collected": 7}),
    ("Forward", 'N"et\\', 5_001_000_200, 5_001_300_877, 1, {"more": "ü"}),
    ("Mine", "mine", 5_000_500_000, 5_000_500_000, -1, None),
]


def events():
    for phase, name, start_ns, end_ns, step, more in SPANS:
        start_us, end_us = (start_ns + OFFSET_NS) // 1000, (end_ns + OFFSET_NS) // 1000
        yield TraceEvent(phase, name, start_us, end_us - start_us, span_args(77, step, more))


def writer(folder, **more):
    return TraceWriter(folder, "0-algo-1", start_us=BASE_US - 10, **more)


def contents(folder):
    return {
        str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*.json*")) if file.is_file()
    }


def test_spans_and_their_events_are_written_identically(tmp_path):
    long, short = writer(tmp_path / "long"), writer(tmp_path / "short")
    long.write([FIRST])
    short.write([FIRST])
    for _ in range(3):
        long.write(events())
        assert short.write_spans(SPANS, OFFSET_NS, 77)
    long.close()
    short.close()
    assert contents(tmp_path / "short") == contents(tmp_path / "long")
    (data,) = contents(tmp_path / "short").values()
    assert [row["args"] for row in json.loads(data) if row["ph"] == "X" and row["name"] == 'N"et\\'][1] == {
        "pid": 77,
        "step_num": "1",
        "more": "ü",
    }


def test_each_file_announces_the_phases_of_its_spans(tmp_path):
    trace = writer(tmp_path)
    for _ in range(2):
        trace.write([FIRST])
        assert trace.write_spans(SPANS, OFFSET_NS, 77)
        trace.finish()
    for data in contents(tmp_path).values():
        rows = json.loads(data)
        named = {row["pid"]: row["args"].get("name") for row in rows if row["name"] == "process_name"}
        assert [named[row["pid"]] for row in rows if row["ph"] == "X"] == ["First", *(span[0] for span in SPANS)]
    assert len(contents(tmp_path)) == 2


def test_the_fast_path_declines_special_cases(tmp_path):
    trace = writer(tmp_path / "closed")
    assert not trace.write_spans(SPANS, OFFSET_NS, 77)  # no file is open
    trace.write([FIRST])
    later = [(*span[:2], span[2], span[3] + 3_600_000_000_000, *span[4:]) for span in SPANS]
    assert not trace.write_spans(later, OFFSET_NS, 77)  # another hour
    small = writer(tmp_path / "small", max_bytes=600)
    small.write([FIRST])
    assert not small.write_spans(SPANS, OFFSET_NS, 77)  # nearly full
    before = contents(tmp_path)
    descriptor, trace._fd = trace._fd, os.open("/dev/full", os.O_WRONLY)
    assert not trace.write_spans(SPANS, OFFSET_NS, 77)  # the disk does not take it
    assert trace.dropped == 0
    os.close(trace._fd)
    trace._fd = descriptor
    assert contents(tmp_path) == before
    assert trace.write_spans(SPANS, OFFSET_NS, 77)
    trace.close()
    (data,) = contents(tmp_path / "closed").values()
    assert {
        row["args"]["name"] for row in json.loads(data) if row["name"] == "process_name" and "name" in row["args"]
    } == {
        "First",
        *(span[0] for span in SPANS),
    }
