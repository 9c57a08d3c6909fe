"""Merged timelines of torch.profiler's traces: streams, flows, counters, clocks."""

import gzip
import json
import tracemalloc
from collections import defaultdict
from pathlib import Path

import pytest

from sm_profiler.cli import main
from sm_profiler.errors import SourceError
from sm_profiler.gpu_traces.timeline import export_traces
from tests.support.gpu_events import call, event, kernel

REAL = Path(__file__).parents[1] / "data" / "gpu_traces"
EPOCH_US = 1.7e15


def write(folder, *ranks, base_us=EPOCH_US, apart_us=0.0):
    folder.mkdir()
    for rank, events in enumerate(ranks):
        found = {
            "schemaVersion": 1, "distributedInfo": {"rank": rank}, "traceEvents": events,
            "baseTimeNanoseconds": int((base_us + rank * apart_us) * 1000),
        }  # fmt: skip
        (folder / f"rank{rank}.json").write_text(json.dumps(found))
    return folder


def launches(count=3):
    return [
        one
        for at in range(count)
        for one in (
            event("cpu_op", "aten::mm", 100 * at, 20), call(100 * at + 5, 5, at),
            kernel("gemm", 100 * at + 50.125, 60, correlation=at),
        )
    ]  # fmt: skip


def collectives(late=0.0):
    return [
        one
        for at in range(10)
        for one in (call(1000 * at, 5, at), kernel("ncclDevKernel_AllReduce", 1000 * at + 10 + late, 500 - late, correlation=at))
    ]  # fmt: skip


def traced(source, tmp_path):
    export_traces(source, tmp_path / "t.json")
    return json.loads((tmp_path / "t.json").read_text())


def values_of(trace, name):
    return [one["args"]["value"] for one in of(trace, "C") if one["name"] == name and one["pid"] == 1]


def of(trace, kind):
    return [event for event in trace["traceEvents"] if event["ph"] == kind]


def test_streams_flows_and_counters(tmp_path):
    plain = traced(write(tmp_path / "in", launches(), launches()), tmp_path)
    lanes = {(one["pid"], one["args"]["name"]) for one in of(plain, "M") if one["name"] == "thread_name"}
    assert lanes == {(pid, lane) for pid in (1, 2) for lane in ("host thread 0", "GPU 0 stream 7")}
    starts, ends = ({one["id"]: one for one in of(plain, kind)} for kind in "sf")
    assert set(starts) == set(ends) == set(range(1, 7))
    kernels = {(one["pid"], one["tid"], one["ts"]) for one in of(plain, "X") if one["cat"] == "kernel"}
    assert {(one["pid"], one["tid"], one["ts"]) for one in ends.values()} == kernels
    calls = {(one["pid"], one["tid"], one["ts"]) for one in of(plain, "X") if one["cat"] == "runtime"}
    assert {(one["pid"], one["tid"], one["ts"]) for one in starts.values()} == calls
    assert all(ends[number]["ts"] - starts[number]["ts"] == pytest.approx(45.125) for number in starts)
    assert values_of(plain, "queue of stream 7") == [1, 0, 1, 0, 1, 0]


def test_real_traces_hold_each_event_once(tmp_path):
    for name in ("sampled2", "alexnet", "amd"):
        done = export_traces(REAL / name, tmp_path / f"{name}.json")
        plain = json.loads((tmp_path / f"{name}.json").read_text())
        assert len(of(plain, "X")) + len(of(plain, "C")) == done.events
        assert len({one["id"] for one in of(plain, "s")}) == len(of(plain, "s")) == len(of(plain, "f"))


def test_bandwidth_of_copies(tmp_path):
    copy = {"thread": 7, "stream": 7, "device": 0}
    events = [
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 0, 10, bytes=100_000, **copy),
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 20, 10, bytes=50_000, **copy),
    ]
    assert values_of(traced(write(tmp_path / "in", events), tmp_path), "Memcpy HtoD, GB/s") == [10, 0, 5, 0]


def test_clocks_of_two_machines_are_aligned_by_collectives(tmp_path):
    source = write(tmp_path / "in", collectives(), collectives(late=100), apart_us=25_000)
    done = export_traces(source, tmp_path / "t.json")
    assert done.shift_us == {"rank 1": pytest.approx(-25_000)}
    plain = json.loads((tmp_path / "t.json").read_text())
    ends = defaultdict(set)
    for one in of(plain, "X"):
        if one["cat"] == "kernel":
            ends[one["pid"]].add(round(one["ts"] + one["dur"], 3))
    assert ends[1] == ends[2]


def test_clocks_that_agree_are_left_alone(tmp_path):
    source = write(tmp_path / "in", collectives(), collectives(late=100), apart_us=300)
    assert export_traces(source, tmp_path / "t.json").shift_us == {}


def test_clocks_since_a_machines_start_are_aligned_by_steps(tmp_path):
    ranks = [
        [{**one, "ts": one["ts"] + at} for one in (event("user_annotation", "ProfilerStep#3", 0, 50), *launches())]
        for at in (5e6, 9e9)
    ]
    done = export_traces(write(tmp_path / "in", *ranks, base_us=0), tmp_path / "t.json")
    assert done.shift_us == {"rank 1": pytest.approx(5e6 - 9e9)}


def test_one_rank_is_in_memory_at_a_time(tmp_path):
    def peak(ranks):
        source = write(tmp_path / f"in{ranks}", *([launches(700)] * ranks))
        tracemalloc.start()
        export_traces(source, tmp_path / "t.json")
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(1)
    assert peak(6) < 2.5 * peak(2)


def test_the_command_writes_compressed_files(tmp_path, capsys):
    source = write(tmp_path / "in", launches())
    for name in ("plain.json", "packed.json.gz"):
        assert main(["merge-timeline", str(source), "--out", str(tmp_path / name)]) == 0
    assert "perfetto" in capsys.readouterr().out
    assert (tmp_path / "plain.json").read_bytes() == gzip.decompress((tmp_path / "packed.json.gz").read_bytes())


def test_reports_a_folder_without_traces(tmp_path):
    with pytest.raises(SourceError, match="no traces"):
        export_traces(tmp_path, tmp_path / "t.json")


def test_hostile_names_and_numbers_survive(tmp_path):
    nasty = 'x"\\\n\u0000</script>' + "y" * 10_000
    events = [event("cpu_op", nasty, 0, 10), kernel(nasty, 2**50, 1), kernel("gemm", 5, 1)]
    assert len(of(traced(write(tmp_path / "in", events), tmp_path), "X")) == 3
