"""The merged timeline, checked against the trace-event format."""

import json
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from sm_profiler.analysis import MergedTimeline, MergeUnit
from sm_profiler.errors import ConfigError, SourceError
from sm_profiler.source import open_source
from sm_profiler.timeline import MAX_LANES, Clock, read_clocks
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
                "process_labels",
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
            assert record["s"] == "g"
    for spans in map(sorted, rows.values()):
        stack = []
        for start, minus in spans:
            while stack and stack[-1] <= start:
                stack.pop()
            assert not stack or start - minus <= stack[-1]
            stack.append(start - minus)


def load(path):
    records = json.loads(Path(path).read_text())
    check(records)
    return records


def test_merges_a_time_range(job, tmp_path):
    path = MergedTimeline(str(job), output_directory=str(tmp_path)).merge_timeline(*MIDDLE)
    assert Path(path) == tmp_path / f"{MIDDLE[1]}_merged_timeline.json"
    records = load(path)
    kinds = Counter(record["ph"] for record in records)
    source = open_source(job)
    events, system = source.events(), source.system()
    inside = (
        (events.end_us >= MIDDLE[0]) & (events.start_us <= MIDDLE[1]) & ~events.instants
    )  # of these, there are none
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
    assert {"loop", "loader worker 0", "Python profiling: cprofile"} <= rows
    gpus = [record for record in records if record["name"] == "GPU use, %" and "gpu1" in record["args"]]
    mask = (system.timestamp * 1e6 >= MIDDLE[0]) & (system.timestamp * 1e6 <= MIDDLE[1])
    assert len(gpus) == (mask & system.name.mask("gpu1") & system.dimension.mask("GPUUtilization")).sum()
    marked = [record for record in records if record["ph"] == "i"]
    assert all(value < 85 for record in marked for value in record["args"].values())
    clock = next(record for record in records if record["name"] == "sm_profiler/clock")
    assert clock["args"]["clock_error_us"] == {}


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


def test_warns_of_a_part_that_holds_nothing(job, tmp_path, caplog):
    MergedTimeline(str(job), output_directory=str(tmp_path)).merge_timeline(10.0, 20.0)
    assert "the timeline has no events" in caplog.text


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
    assert read_clocks(metadata) == {"algo-1-0": Clock(250, 40), "algo-2-1": Clock(0, 90)}


def write_calls(folder, events, metadata=()):
    """Write a profile of one process."""
    pevents = folder / "framework/pevents/2023111422"
    pevents.mkdir(parents=True)
    end_us = 1_700_000_000_000_000
    start = {
        "name": "process_name",
        "ph": "M",
        "pid": 0,
        "args": {"name": "Calls", "start_time_since_epoch_in_micros": 0},
    }
    shifted = ({**event, "ts": end_us - 10_000 + event["ts"]} for event in events)
    (pevents / f"{end_us}_0-algo-1_pythontimeline.json").write_text(json.dumps([start, *metadata, *shifted]))
    return folder


def test_events_that_overlap_with_too_many_others_are_counted(tmp_path):
    count = 5_000
    events = [
        {"name": f"call {number}", "ph": "X", "ts": number, "dur": count, "pid": 0, "tid": 1} for number in range(count)
    ]
    profile = write_calls(tmp_path / "profile", events)
    begin = time.monotonic()
    timeline = MergedTimeline(open_source(profile, cache=False), output_directory=str(tmp_path))
    records = load(timeline.merge_timeline(0, 1.8e15, sys_metrics_filter=None))
    assert time.monotonic() - begin < 20
    written = [record for record in records if record["ph"] == "X"]
    assert len({record["tid"] for record in written}) == MAX_LANES
    (clock,) = (record for record in records if record["name"] == "sm_profiler/clock")
    assert len(written) + clock["args"]["events_left_out"] == count


def test_times_are_exact_and_on_one_clock(tmp_path):
    args = {"clock_offset_us": 250.5, "clock_error_us": 40, "rank": 0}
    record = {"name": "sm_profiler/process", "ph": "M", "pid": 0, "args": args}
    events = [{"name": "call", "ph": "X", "ts": 1001, "dur": 1.5, "pid": 0, "tid": 1, "args": {"key": [1, "ä"]}}]
    profile = write_calls(tmp_path / "profile", events, [record])
    timeline = MergedTimeline(open_source(profile, cache=False), output_directory=str(tmp_path))
    text = Path(timeline.merge_timeline(0, 1.8e15)).read_text()
    assert '"ts":1699999999990750.5,"dur":1.5' in text
    records = json.loads(text)
    (call,) = (record for record in records if record["name"] == "call")
    assert call["args"]["key"][0] == 1
    (clock,) = (record for record in records if record["name"] == "sm_profiler/clock")
    assert clock["args"]["clock_error_us"] == {"algo-1-0": 40}


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
    assert read_clocks(metadata) == {}
