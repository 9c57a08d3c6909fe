"""Merged timelines of torch.profiler's traces: streams, flows, counters, clocks; as JSON and as Perfetto's protobuf."""

import gzip
import json
import tracemalloc
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from gpu_events import call, event, kernel
from perfetto.protos.perfetto.trace import perfetto_trace_pb2

from sm_profiler.cli import main
from sm_profiler.errors import SourceError
from sm_profiler.formats.perfetto_writer import PerfettoSink
from sm_profiler.report.gpu.timeline import export_traces

REAL = Path(__file__).parents[1] / "data" / "gpu_traces"
EPOCH_US = 1.7e15
BEGIN, END, COUNTER = 1, 2, 4


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


class Decoded:
    """A Perfetto trace, read with the published schema as its importer would."""

    def __init__(self, content):
        trace = perfetto_trace_pb2.Trace()
        trace.ParseFromString(content)
        self.processes, self.threads, self.counters = {}, {}, {}
        self.slices, self.values, self.flows = [], defaultdict(list), defaultdict(list)
        names, categories, keys = {}, {}, {}
        packets = []
        for packet in trace.packet:
            if packet.sequence_flags & 1:
                for table in (names, categories, keys):
                    table.clear()
            for table, fresh in (
                (names, packet.interned_data.event_names), (categories, packet.interned_data.event_categories),
                (keys, packet.interned_data.debug_annotation_names),
            ):  # fmt: skip
                table.update((one.iid, one.name) for one in fresh)
            assert packet.trusted_packet_sequence_id
            if packet.HasField("track_descriptor"):
                self.describe(packet.track_descriptor)
            if packet.HasField("track_event"):
                made = packet.track_event
                args = {keys[one.name_iid]: one for one in made.debug_annotations}
                name = names[made.name_iid] if made.name_iid else ""
                category = [categories[each] for each in made.category_iids]
                packets.append((packet.timestamp, made, name, category, args))
        self.replay(packets)

    def replay(self, packets):
        stacks = defaultdict(list)
        for at, made, name, category, args in sorted(packets, key=lambda one: one[0]):  # stable, as the importer's
            if made.type == BEGIN:
                assert made.track_uuid in self.threads
                found = {"name": name, "category": category, "at": at, "track": made.track_uuid, "args": args}
                stacks[made.track_uuid].append(found)
                self.slices.append(found)
                for each in (*made.flow_ids, *made.terminating_flow_ids):
                    self.flows[each].append(found)
            elif made.type == END:
                stacks[made.track_uuid].pop()["until"] = at
            else:
                assert made.type == COUNTER
                self.values[self.counters[made.track_uuid]].append((at, made.double_counter_value))
        assert not any(stacks.values())
        assert all("until" in one for one in self.slices)

    def describe(self, track):
        if track.HasField("process"):
            self.processes[track.uuid] = track.process.process_name
        elif track.HasField("thread"):
            assert track.parent_uuid in self.processes
            self.threads[track.uuid] = track.thread.thread_name
        else:
            assert track.HasField("counter")
            self.counters[track.uuid] = (self.processes[track.parent_uuid], track.name)


def both(source, tmp_path):
    export_traces(source, tmp_path / "t.json")
    export_traces(source, tmp_path / "t.pftrace")
    return json.loads((tmp_path / "t.json").read_text()), Decoded((tmp_path / "t.pftrace").read_bytes())


def of(trace, kind):
    return [event for event in trace["traceEvents"] if event["ph"] == kind]


def test_streams_flows_and_counters(tmp_path):
    plain, packed = both(write(tmp_path / "in", launches(), launches()), tmp_path)
    lanes = {(one["pid"], one["args"]["name"]) for one in of(plain, "M") if one["name"] == "thread_name"}
    assert lanes == {(pid, lane) for pid in (1, 2) for lane in ("host thread 0", "GPU 0 stream 7")}
    starts, ends = ({one["id"]: one for one in of(plain, kind)} for kind in "sf")
    assert set(starts) == set(ends) == set(range(1, 7))
    kernels = {(one["pid"], one["tid"], one["ts"]) for one in of(plain, "X") if one["cat"] == "kernel"}
    assert {(one["pid"], one["tid"], one["ts"]) for one in ends.values()} == kernels
    calls = {(one["pid"], one["tid"], one["ts"]) for one in of(plain, "X") if one["cat"] == "runtime"}
    assert {(one["pid"], one["tid"], one["ts"]) for one in starts.values()} == calls
    assert all(ends[number]["ts"] - starts[number]["ts"] == pytest.approx(45.125) for number in starts)
    assert len(packed.flows) == 6
    assert {tuple(one["name"] for one in pair) for pair in packed.flows.values()} == {("cudaLaunchKernel", "gemm")}
    queue = [value for _, value in packed.values["rank 0", "queue of stream 7"]]
    assert queue == [1, 0, 1, 0, 1, 0]


def test_both_formats_hold_the_same(tmp_path):
    for name in ("sampled2", "alexnet", "amd"):
        folder = tmp_path / name
        folder.mkdir()
        plain, packed = both(REAL / name, folder)
        origin = plain["otherData"]["start_time_since_epoch_in_micros"] * 1000
        expected = sorted(
            (round(one["ts"] * 1e3), round((one["ts"] + one["dur"]) * 1e3), one["name"]) for one in of(plain, "X")
        )
        found = sorted((one["at"] - origin, one["until"] - origin, one["name"]) for one in packed.slices)
        assert len(found) == len(expected)
        assert all(
            a[2] == b[2] and abs(a[0] - b[0]) <= 1 and abs(a[1] - b[1]) <= 1
            for a, b in zip(expected, found, strict=True)
        )
        assert sum(len(values) for values in packed.values.values()) == len(of(plain, "C"))
        assert len(packed.flows) == len(of(plain, "s"))
        assert (folder / "t.pftrace").stat().st_size < 0.7 * (folder / "t.json").stat().st_size


def test_files_join_end_to_end(tmp_path):
    parts = []
    for number in range(2):
        source = write(tmp_path / f"in{number}", launches())
        export_traces(source, tmp_path / "t.pftrace")
        parts.append((tmp_path / "t.pftrace").read_bytes())
    whole = Decoded(b"".join(parts))
    assert len(whole.processes) == 2
    assert len(whole.slices) == 2 * len(Decoded(parts[0]).slices)
    assert len(whole.flows) == 6


def test_bandwidth_of_copies(tmp_path):
    copy = {"thread": 7, "stream": 7, "device": 0}
    events = [
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 0, 10, bytes=100_000, **copy),
        event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 20, 10, bytes=50_000, **copy),
    ]
    _, packed = both(write(tmp_path / "in", events), tmp_path)
    assert [value for _, value in packed.values["rank 0", "Memcpy HtoD, GB/s"]] == [10, 0, 5, 0]


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


def test_the_command_writes_both_formats(tmp_path, capsys):
    source = write(tmp_path / "in", launches())
    assert main(["merge-timeline", str(source), "--out", str(tmp_path / "a.perfetto-trace")]) == 0
    assert main(["merge-timeline", str(source), "--out", str(tmp_path / "b.gz"), "--format", "perfetto"]) == 0
    assert main(["merge-timeline", str(source), "--out", str(tmp_path / "c.pftrace"), "--format", "json"]) == 0
    assert "perfetto" in capsys.readouterr().out
    plain = (tmp_path / "a.perfetto-trace").read_bytes()
    assert plain == gzip.decompress((tmp_path / "b.gz").read_bytes())
    assert Decoded(plain).slices
    assert json.loads((tmp_path / "c.pftrace").read_text())["traceEvents"]


def test_reports_a_folder_without_traces(tmp_path):
    with pytest.raises(SourceError, match="no traces"):
        export_traces(tmp_path, tmp_path / "t.json")


def test_hostile_names_and_numbers_survive(tmp_path):
    nasty = 'x"\\\n\u0000</script>' + "y" * 10_000
    events = [event("cpu_op", nasty, 0, 10), kernel(nasty, 2**50, 1), kernel("gemm", 5, 1)]
    plain, packed = both(write(tmp_path / "in", events), tmp_path)
    assert len(packed.slices) == len(of(plain, "X")) == 3


def test_a_sink_begins_anew_for_each_reader(tmp_path):
    path = tmp_path / "t.pftrace"
    with path.open("wb") as out:
        sink = PerfettoSink(out, 10**18, "here")
        sink.name_process(1, "p", 1)
        sink.name_thread(1, 1, "t", 1)
        sink.slice(1, 1, "name", "kind", 5, 0, {"step": -3, "share": 0.5, "note": "x"}, 0)
        sink.counter(1, "memory", 7, {"value": 1.5, "other": 2})
        sink.close({})
    found = Decoded(path.read_bytes())
    (one,) = found.slices
    assert (one["at"], one["until"], one["category"]) == (10**18 + 5, 10**18 + 5, ["kind"])
    assert (one["args"]["step"].int_value, one["args"]["share"].double_value, one["args"]["note"].string_value) == (
        -3,
        0.5,
        "x",
    )
    assert found.values == {("p", "memory"): [(10**18 + 7, 1.5)], ("p", "memory: other"): [(10**18 + 7, 2)]}


def test_parts_of_packets_that_are_remembered_are_those_of_each_slice(tmp_path, monkeypatch):
    """Numbers that are equal and not the same, of one, two and more bytes, also after too many to remember."""
    numbers = [0, 1, True, 1.0, -1, 0.0, -0.0, 127, 128, 16383, 16384, 1 << 40, "1", 127, 128, 16384]
    files = []
    for remembered in (1 << 15, 2, 0):
        monkeypatch.setattr("sm_profiler.formats.perfetto_writer._REMEMBERED", remembered)
        files.append(tmp_path / f"{remembered}.pftrace")
        with files[-1].open("wb") as out:
            sink = PerfettoSink(out, 10**18, "here")
            sink.name_process(1, "p", 1)
            sink.name_thread(1, 1, "t", 1)
            for at, number in enumerate(numbers):
                sink.slice(1, 1, "ab"[at % 2], "kind", at << 20, 1, {"number": number}, 0)
            sink.close({})
    assert len({file.read_bytes() for file in files}) == 1
    found = [one["args"]["number"] for one in Decoded(files[0].read_bytes()).slices]
    for number, one in zip(numbers, found, strict=True):
        if isinstance(number, str):
            assert one.string_value == number
        elif isinstance(number, float):
            assert np.copysign(1, one.double_value) == np.copysign(1, number)
            assert one.double_value == number
        else:
            assert one.int_value == int(number)
