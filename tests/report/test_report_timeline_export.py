"""Merged timelines, verified by a strict checker of the trace-event format."""

import gzip
import io
import json
import time
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm_profiler.cli import main
from sm_profiler.errors import SourceError
from sm_profiler.formats.layout import detailed_folder, source_name
from sm_profiler.formatting import shorten
from sm_profiler.gpu_traces.timeline import TracedTime, outside
from sm_profiler.report.write import export_timeline
from sm_profiler.source import open_source
from sm_profiler.timeline import MAX_LANES, TimelineWriter
from tests.support.jobs import make_job
from tests.support.reports import START_S, events, system, training

METADATA = {
    "process_name": "name",
    "thread_name": "name",
    "process_labels": "labels",
    "process_sort_index": "sort_index",
    "thread_sort_index": "sort_index",
}


def check(trace):
    """Assert the format of a trace: types, names of metadata, numbers in counters, nesting within a thread."""
    assert set(trace) <= {"traceEvents", "displayTimeUnit", "otherData"}
    assert trace["displayTimeUnit"] in ("ms", "ns")
    slices, named = defaultdict(list), set()
    for event in trace["traceEvents"]:
        assert isinstance(event["name"], str)
        assert event["name"]
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert isinstance(event["ts"], (int, float))
        assert event["ph"] in "XCM"
        if event["ph"] == "M":
            key = METADATA[event["name"]]
            assert isinstance(event["args"][key], int if key == "sort_index" else str)
            named.add((event["pid"], event["tid"]) if event["name"].startswith("thread") else (event["pid"],))
        elif event["ph"] == "C":
            assert event["args"]
            assert all(
                isinstance(value, (int, float)) and not isinstance(value, bool) for value in event["args"].values()
            )
        else:
            assert event["dur"] >= 0
            assert isinstance(event["cat"], str)
            slices[event["pid"], event["tid"]].append((event["ts"], -event["dur"]))
    for (pid, tid), spans in slices.items():
        assert (pid,) in named
        assert (pid, tid) in named
        stack = []
        for start, negative in sorted(spans):
            end = start - negative
            while stack and stack[-1] <= start + 1e-6:
                stack.pop()
            assert not stack or end <= stack[-1] + 1e-6, f"slices of thread {tid} cross at {start}"
            stack.append(end)
    return len(trace["traceEvents"])


@pytest.mark.parametrize(
    "options",
    [("--gpus", "2"), ("--tensorflow",), ("--horovod", "--gpus", "2", "--nodes", "2"), ("--scenario", "no-framework")],
)
def test_whole_jobs_pass_the_checker(tmp_path, options):
    make_job(tmp_path / "job", "--minutes", "2", *options)
    source = open_source(tmp_path / "job", cache=False)
    done = export_timeline(source, tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    check(trace)
    assert done.events == sum(event["ph"] != "M" for event in trace["traceEvents"])
    fresh = open_source(tmp_path / "job", cache=False)
    written = sum(event["ph"] == "X" for event in trace["traceEvents"])
    assert written == len(fresh.events())


def test_checker_rejects_crossing_slices():
    crossing = [
        {"name": name, "cat": "c", "ph": "X", "pid": 1, "tid": 1, "ts": ts, "dur": 10}
        for name, ts in (("a", 0), ("b", 5))
    ]
    names = [
        {"name": "process_name", "ph": "M", "pid": 1, "tid": 0, "ts": 0, "args": {"name": "p"}},
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": 1, "ts": 0, "args": {"name": "t"}},
    ]
    with pytest.raises(AssertionError, match="cross"):
        check({"displayTimeUnit": "ms", "traceEvents": names + crossing})


def write(tmp_path, *tables, metadata=()):
    path = tmp_path / "trace.json"
    with path.open("wb") as out:
        writer = TimelineWriter(out, 1.7e15)
        for table in tables:
            writer.add_events(table)
        done = writer.finish(list(metadata), "here")
    return json.loads(path.read_text()), done


def test_steps_and_phases_share_a_lane(tmp_path):
    trace, _ = write(tmp_path, events(training(50)))
    check(trace)
    threads = {event["tid"] for event in trace["traceEvents"] if event["ph"] == "X"}
    assert len(threads) == 1


def test_crossing_and_late_events_get_other_lanes(tmp_path):
    a = events([("Forward", "a", 1.0, 1.0, "algo-1-0", 0), ("Forward", "b", 1.5, 1.0, "algo-1-0", 0)])
    late = events([("Forward", "late", 0.9, 5.0, "algo-1-0", 0)])
    trace, _ = write(tmp_path, a, late)
    check(trace)
    assert len({event["tid"] for event in trace["traceEvents"] if event["ph"] == "X"}) == 3


def test_many_overlapping_events_share_few_lanes(tmp_path):
    count = 3000
    staircase = [("Forward", "f", 1.0 + step / 1e4, 1.0, "algo-1-0", step) for step in range(count)]
    begun = time.process_time()
    trace, done = write(tmp_path, events(staircase))
    assert time.process_time() - begun < 10
    check(trace)
    written = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len({event["tid"] for event in written}) == MAX_LANES
    assert len(written) + done.left_out == count
    assert done.events == len(written)
    assert trace["otherData"]["events_left_out"] == done.left_out


NAMES = [
    "a",
    'x"\\\n\u0000</script>\ud800',
    "y" * 400,
    "",
    "Step:ModeKeys.TRAIN",
    "ReceiveBytesPerSecond",
    "cpu0",
    "cpu1",
]
PHASES = [
    "Forward",
    "cpu_functions",
    "GPUFunctions-dev:0",
    "DataLoaderWorker",
    "",
    "sm_profiler/gc",
    "\ud800\u202e" * 80,
]
ODD = [float("nan"), float("inf"), -5.0]
SLICE = st.tuples(
    st.sampled_from(PHASES), st.sampled_from(NAMES), st.sampled_from([*ODD, *(number / 8 for number in range(40))]),
    st.sampled_from([*ODD, *(number / 8 for number in range(12)), 1e-9]), st.sampled_from(["algo-1-0", "algo-1-1"]),
    st.sampled_from([-1, 0, 7, 2**62]),
)  # fmt: skip
SAMPLE = st.tuples(
    st.sampled_from([0.0, 0.5, 1.0, 1.25]), st.sampled_from([*ODD, 0.0, 1e-9, 1e300, 12.5]),
    st.sampled_from(["algo-1", "algo-2"]), st.just("cpu"), st.sampled_from(NAMES),
    st.sampled_from(["CPUUtilization", "Algorithm", "Platform"]),
)  # fmt: skip


def written(tables):
    out = io.BytesIO()
    writer = TimelineWriter(out, START_S * 1e6)
    for table in tables:
        (writer.add_events if hasattr(table, "phase") else writer.add_system)(table)
    done = writer.finish([], "here")
    return json.loads(out.getvalue()), done


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(SLICE, min_size=1, max_size=40), min_size=1, max_size=4))
def test_any_slices_nest(batches):
    trace, done = written([events(rows) for rows in batches])
    check(trace)
    rows = [row for rows in batches for row in rows if np.isfinite(row[2]) and np.isfinite(row[3])]
    assert done.events + done.left_out == len(rows)
    found = sorted(event["dur"] for event in trace["traceEvents"] if event["ph"] == "X")
    if not done.left_out:
        assert found == pytest.approx(sorted(max(row[3], 0.0) * 1e6 for row in rows), abs=1e-3)


@settings(max_examples=60, deadline=None)
@given(st.lists(SAMPLE, min_size=1, max_size=40))
def test_of_several_values_of_a_moment_the_last_one_counts(rows):
    wanted = defaultdict(dict)
    for seconds, value, node, _, name, dimension in rows:
        title = "CPU use, %" if dimension == "CPUUtilization" else "network, bytes/s"
        shown = {"ReceiveBytesPerSecond": "received", "": "value"}.get(name, shorten(name, 60))
        if np.isfinite(value) and dimension != "Platform" and (dimension == "CPUUtilization" or "Bytes" in name):
            wanted[f"{node} system", title, seconds * 1e6][shown] = value
    trace, _ = written([system(rows)])
    named = {event["pid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"}
    counters = [event for event in trace["traceEvents"] if event["ph"] == "C"]
    assert {(named[event["pid"]], event["name"], event["ts"]): event["args"] for event in counters} == wanted
    assert len(counters) == len(wanted)


def test_contains_clock_errors(tmp_path):
    record = {"name": "sm_profiler/process", "node": "algo-1-0", "args": {"clock_error_us": 1500}}
    trace, done = write(tmp_path, events(training(3)), metadata=[record])
    assert done.clock_error_us == {"algo-1-0": 1500}
    assert trace["otherData"]["clock_error_us"] == {"algo-1-0": 1500}
    assert any(event["name"] == "process_labels" for event in trace["traceEvents"])


def test_accepts_hostile_names(tmp_path):
    nasty = 'x"\\\n\u0000</script>\ud800' + "y" * 100_000
    trace, _ = write(tmp_path, events([("Forward", nasty, 1.0, 1.0, "algo-1-0", 0), ("", "", 1.0, 0.5, "algo-1-0", 0)]))
    check(trace)


def test_command_writes_compressed_traces(tmp_path, capsys):
    make_job(tmp_path / "job", "--minutes", "1")
    assert main(["merge-timeline", str(tmp_path / "job"), "--out", str(tmp_path / "t.json.gz")]) == 0
    check(json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes())))
    assert "chrome://tracing" in capsys.readouterr().out


def test_reports_an_unwritable_path(tmp_path):
    make_job(tmp_path / "job", "--minutes", "1")
    (tmp_path / "dir.json").mkdir()
    with pytest.raises(SourceError, match=r"dir\.json"):
        export_timeline(open_source(tmp_path / "job", cache=False), tmp_path / "dir.json")


def of_kind(trace, kind):
    return [event for event in trace["traceEvents"] if event["ph"] == kind]


def test_a_window_of_a_profile_comes_from_its_own_trace(tmp_path):
    profile = make_job(tmp_path / "job", "--minutes", "1", "--gpus", "1")
    fresh = open_source(profile, cache=False)
    at = fresh.first_timestamp_us
    node = min(fresh.events().node.present())
    name, _, number = node.rpartition("-")
    folder = profile / detailed_folder("pytorch", at, 3)
    folder.mkdir(parents=True)
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": 5, "dur": 5}
    traced = [
        {**launch, "args": {"correlation": 1}},
        {**launch, "cat": "kernel", "ts": 20, "args": {"correlation": 1, "stream": 7, "device": 0}},
    ]
    content = {"schemaVersion": 1, "baseTimeNanoseconds": int(at) * 1000, "traceEvents": traced}
    (folder / f"{source_name(number, name)}.trace.json.gz").write_bytes(gzip.compress(json.dumps(content).encode()))
    assert main(["merge-timeline", str(profile), "--out", str(tmp_path / "t.json")]) == 0
    trace = json.loads((tmp_path / "t.json").read_text())
    (kernels,) = {one["pid"] for one in of_kind(trace, "X") if one["cat"] == "kernel"}
    names = {one["pid"]: one["args"]["name"] for one in of_kind(trace, "M") if one["name"] == "process_name"}
    assert names[kernels] == node
    assert any(one["pid"] == kernels and one["cat"] != "kernel" for one in of_kind(trace, "X"))
    assert len(of_kind(trace, "f")) == 1


def test_operators_of_a_window_are_not_written_twice():
    made = events([
        ("cpu_functions", "in", 1.0, 0.1, "algo-1-0", 0), ("cpu_functions", "out", 9.0, 0.1, "algo-1-0", 0),
        ("cpu_functions", "other", 1.0, 0.1, "algo-2-0", 0), ("Forward", "phase", 1.0, 0.1, "algo-1-0", 0),
    ])  # fmt: skip
    at = float(made.start_us.min())
    kept = outside([TracedTime("algo-1-0", at - 5, at + 1e6)], made)
    assert {kept.name.values[code] for code in kept.name.codes} == {"out", "other", "phase"}
