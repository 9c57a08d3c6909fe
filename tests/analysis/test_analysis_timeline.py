"""The merged timeline, checked against the trace-event format."""

import json
import time
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm_profiler.analysis import MergedTimeline, MergeUnit
from sm_profiler.analysis.merged_timeline import timeline_records
from sm_profiler.analysis.timeline_events import MAX_LANES, Clock, clock_record, nesting_lanes, read_clocks
from sm_profiler.errors import ConfigError, SourceError
from sm_profiler.source import open_source
from tests.support.jobs import make_job

ROOT = Path(__file__).parents[2]
MIDDLE = (1_700_000_030_000_000, 1_700_000_060_000_000)
NUMBER = (int, float)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job") / "job"
    make_job(
        folder, "--minutes 1.5 --nodes 2 --gpus 2 --cpus 3 --steps-per-second 2 --horovod --scenario fluctuating-gpu"
    )
    stats = (
        folder
        / "framework/pytorch/cprofile/0-algo-1/train-9-stepstart-1700000040000000_train-9-stepend-1700000040300000/python_stats"
    )
    stats.parent.mkdir(parents=True)
    stats.write_bytes(b"")
    return folder


def check(records):
    """Check that each record has its required keys, that names come first, and that the spans of a track nest."""
    rows = defaultdict(list)
    named = set()
    for record in records:
        kind = record["ph"]
        assert set(record) <= {"name", "ph", "pid", "tid", "ts", "dur", "args", "cat", "s", "id"}
        assert isinstance(record["name"], str)
        assert isinstance(record["pid"], int)
        assert isinstance(record["tid"], int)
        if kind == "M":
            assert record["name"] in {
                "process_name",
                "process_sort_index",
                "thread_name",
                "thread_sort_index",
                "sm_profiler/clock",
            }
            named.add((record["name"], record["pid"], record["tid"]))
            continue
        assert ("process_name", record["pid"], 0) in named
        assert isinstance(record["ts"], NUMBER)
        if kind == "X":
            assert record["dur"] >= 0
            assert ("thread_name", record["pid"], record["tid"]) in named
            rows[record["pid"], record["tid"]].append((record["ts"], -record["dur"]))
        elif kind == "C":
            assert all(isinstance(value, NUMBER) for value in record["args"].values())
        else:
            assert kind == "i"
            assert record["s"] in {"g", "p", "t"}
    for spans in rows.values():
        assert spans == sorted(spans)
        stack = []
        for start, minus in spans:
            while stack and stack[-1] <= start:
                stack.pop()
            assert not stack or start - minus <= stack[-1]
            stack.append(start - minus)


def load(path):
    records = json.loads(Path(path).read_text())
    check(records)
    times = [record["ts"] for record in records if "ts" in record]
    assert times == sorted(times)
    return records


def test_merges_a_time_range(job, tmp_path):
    path = MergedTimeline(str(job), output_directory=str(tmp_path)).merge_timeline(*MIDDLE)
    assert Path(path) == tmp_path / f"{MIDDLE[1]}_merged_timeline.json"
    records = load(path)
    kinds = Counter(record["ph"] for record in records)
    source = open_source(job)
    events, system = source.events(), source.system()
    inside = (events.end_us >= MIDDLE[0]) & (events.start_us <= MIDDLE[1]) & ~events.instants
    assert kinds["X"] == inside.sum() + 1  # and the Python profile
    assert kinds["C"] > 0
    assert kinds["i"] > 0
    names = {record["args"]["name"] for record in records if record["name"] == "process_name"}
    assert names == {
        "algo-1-0",
        "algo-1-1",
        "algo-2-2",
        "algo-2-3",
        "algo-1 system",
        "algo-2 system",
        "low GPU utilization",
    }
    rows = {record["args"]["name"] for record in records if record["name"] == "thread_name"}
    assert {"Step:ModeKeys.TRAIN", "DataLoaderWorker 0", "Python profiling: cprofile"} <= rows
    gpus = [record for record in records if record["name"] == "gpu1 GPUUtilization"]
    mask = (system.timestamp * 1e6 >= MIDDLE[0]) & (system.timestamp * 1e6 <= MIDDLE[1])
    assert len(gpus) == (mask & system.name.mask("gpu1") & system.dimension.mask("GPUUtilization")).sum()
    marked = [record for record in records if record["ph"] == "i"]
    assert all(value < 85 for record in marked for value in record["args"].values())
    clock = next(record for record in records if record["name"] == "sm_profiler/clock")
    assert clock["args"]["error_bound_us"] is None
    assert "note" in clock["args"]


def test_merges_a_step_range_without_system_metrics(job, tmp_path):
    timeline = MergedTimeline(str(job), output_directory=str(tmp_path))
    records = load(timeline.merge_timeline(3, 6, MergeUnit.STEP, sys_metrics_filter={}))
    assert {record["ph"] for record in records} == {"M", "X"}
    steps = {int(record["args"]["step_num"]) for record in records if record["name"] == "Step:ModeKeys.TRAIN"}
    assert {3, 4, 5} <= steps <= {2, 3, 4, 5, 6}
    with pytest.raises(SourceError, match="not recorded"):
        timeline.merge_timeline(3, 10_000, "step")
    for unit in ("step", "time"):
        with pytest.raises(ConfigError, match="starts at 30, after its end at 20"):
            timeline.merge_timeline(30, 20, unit)
    with pytest.raises(ConfigError, match="time, step"):
        timeline.merge_timeline(3, 6, "epoch")


def test_merges_selected_files_and_thresholds(job, tmp_path):
    timeline = MergedTimeline(str(job), ["horovod_timeline.json"], str(tmp_path / "deep" / "folder"))
    records = load(timeline.merge_timeline(*MIDDLE, sys_metrics_filter={"lowgpu": (1,)}))
    categories = {record["cat"] for record in records if record["ph"] == "X"}
    assert categories == {"python"} | {record for record in categories if record.startswith("DistributedOptimizer/")}
    assert all(value < 1 for record in records if record["ph"] == "i" for value in record["args"].values())
    unwritable = tmp_path / "file"
    unwritable.touch()
    with pytest.raises(SourceError, match="cannot be written"):
        MergedTimeline(str(job), output_directory=str(unwritable)).merge_timeline(*MIDDLE)


def test_merges_real_traces(tmp_path):
    samples = ROOT / "tests/data/formats/merge_traces"
    records = load(
        MergedTimeline(str(samples), output_directory=str(tmp_path)).merge_timeline(1594662618874598, 1594662623418701)
    )
    assert all(record["ts"] <= 1594662623418701 for record in records if "ts" in record)
    assert sum(record["ph"] == "X" for record in records) > 0


def test_clock_offsets_and_error_bound():
    metadata = [
        {"name": "sm_profiler/process", "node": "algo-1-0", "args": {"clock_offset_us": 250, "clock_error_us": 40}},
        {"name": "sm_profiler/process", "node": "algo-2-1", "args": {"clock_offset_us": None, "clock_error_us": 90}},
        {"name": "sm_profiler/process", "node": "algo-3-2", "args": {"clock_offset_us": None, "clock_error_us": None}},
    ]
    clocks = read_clocks(metadata, ["algo-1-0", "algo-2-1"])
    assert clocks == {"algo-1-0": Clock(250, 40), "algo-2-1": Clock(0, 90)}
    assert clock_record(clocks)["args"]["error_bound_us"] == 90
    assert clock_record(read_clocks(metadata, ["algo-1-0", "algo-3-2"]))["args"]["error_bound_us"] is None


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=25))
def test_lanes_nest_and_contain_every_span(spans):
    starts = np.array([start for start, _ in spans], float)
    ends = starts + np.array([length for _, length in spans], float)
    order = np.lexsort((-(ends - starts), starts))
    starts, ends = starts[order], ends[order]
    lanes = nesting_lanes(starts, ends)
    for lane in set(lanes.tolist()):
        mine = np.flatnonzero(lanes == lane)
        for one in mine:
            for other in mine[mine > one]:
                assert starts[other] >= ends[one] or ends[other] <= ends[one]


def test_many_overlapping_events_become_asynchronous(tmp_path):
    folder = tmp_path / "profile/framework/pevents/2023111422"
    folder.mkdir(parents=True)
    count = 5_000
    events = [
        {"name": f"call {number}", "ph": "X", "ts": number, "dur": count, "pid": 0, "tid": 1} for number in range(count)
    ]
    start = {
        "name": "process_name",
        "ph": "M",
        "pid": 0,
        "args": {"name": "Calls", "start_time_since_epoch_in_micros": 0},
    }
    end_us = 1_700_000_000_000_000
    path = folder / f"{end_us}_0-algo-1_pythontimeline.json"
    path.write_text(json.dumps([start, *({**event, "ts": end_us - 2 * count + event["ts"]} for event in events)]))
    begin = time.monotonic()
    records = list(timeline_records(open_source(tmp_path / "profile", cache=False), sys_metrics_filter=None))
    assert time.monotonic() - begin < 20
    kinds = Counter(record["ph"] for record in records)
    assert kinds["X"] + kinds["b"] == count
    assert kinds["X"] >= MAX_LANES
    assert kinds["b"] == kinds["e"] > 0
    times = [record["ts"] for record in records if "ts" in record]
    assert times == sorted(times)
    assert sum(record["name"] == "thread_name" for record in records) == MAX_LANES + 1
    open_ids = set()
    for record in records:
        if record["ph"] == "b":
            open_ids.add(record["id"])
        elif record["ph"] == "e":
            open_ids.remove(record["id"])
    assert not open_ids


def test_clock_records_of_the_wrong_type_are_ignored():
    wrong = [
        "text",
        1,
        None,
        [],
        {"clock_error_us": "5"},
        {"clock_error_us": 10**400},
        {"clock_error_us": 1, "clock_offset_us": [1]},
    ]
    metadata = [{"node": "algo-1-0", "args": args} for args in wrong] + [{}]
    assert read_clocks(metadata, ["algo-1-0"]) == {"algo-1-0": Clock()}
