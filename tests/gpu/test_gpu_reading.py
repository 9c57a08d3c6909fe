"""Reading of torch.profiler's traces: kinds of writers, damage, blocks, and several files of a job."""

import gzip
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm_profiler.analysis.gpu import GpuTraces, find_traces
from sm_profiler.errors import SourceError
from sm_profiler.formats import kineto_reader, kineto_records
from sm_profiler.formats.kineto_reader import KERNEL, MEMCPY, OPERATOR, RUNTIME, is_kineto, read_kineto


def launch(  # noqa: PLR0913 - one argument a time
    number, start=0.0, *, call=5.0, delay=10.0, kernel=20.0, stream=7, name="kernel", **arguments
):
    """Return an operator, its launch and its kernel."""
    return [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 9, "tid": 9, "ts": start - 1, "dur": call + 2, "args": {}},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": 9, "ts": start, "dur": call,
         "args": {"correlation": number}},
        {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": start + call + delay, "dur": kernel,
         "args": {"correlation": number, "stream": stream, "device": 0, **arguments}},
    ]  # fmt: skip


def document(events, **properties):
    return json.dumps({"schemaVersion": 1, **properties, "traceEvents": events}).encode()


def write(path, events, **properties):
    path.write_bytes(document(events, **properties))
    return path


def test_reads_events_and_properties():
    data = document([{"ph": "M", "name": "process_name"}, *launch(1, 100.0)], distributedInfo={"rank": 3})
    trace, outcome = read_kineto([data])
    assert (outcome.status, outcome.lost, trace.rank) == ("read", 0, 3)
    assert trace.events.category.tolist() == [OPERATOR, RUNTIME, KERNEL]
    assert trace.events.start_us.tolist() == [0.0, 1.0, 16.0]
    assert trace.origin_us == 99.0
    assert trace.events.correlation.tolist() == [-1, 1, 1]


def test_properties_may_follow_the_events():
    data = (
        b'{"schemaVersion": 1, "traceEvents": '
        + json.dumps(launch(1)).encode()
        + b', "INFO": ["]"], "distributedInfo": {"rank": 2}}'
    )
    trace, outcome = read_kineto([data])
    assert (outcome.status, trace.rank, len(trace.events)) == ("read", 2, 3)


def test_blocks_of_any_size_give_the_same(monkeypatch):
    events = [one for number in range(200) for one in launch(number, 50.0 * number, name=f'"}}, {{" kernel {number}')]
    data = document(events)
    whole, _ = read_kineto([data])
    monkeypatch.setattr(kineto_reader, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(kineto_records, "CHUNK_BYTES", 1000)
    for packed in (data, gzip.compress(data)):
        for size in (97, 4096):
            trace, outcome = read_kineto([packed[at : at + size] for at in range(0, len(packed), size)])
            assert outcome.status == "read"
            assert np.array_equal(trace.events.start_us, whole.events.start_us)
            assert trace.events.name.decode().tolist() == whole.events.name.decode().tolist()


def test_a_truncated_file_gives_its_whole_events():
    data = document([one for number in range(50) for one in launch(number, 50.0 * number)])
    for cut in (gzip.compress(data)[:-40], data[: len(data) // 2]):
        trace, outcome = read_kineto([cut])
        assert outcome.status == "repaired"
        assert 20 < len(trace.events) < 150


def test_values_of_other_types_count_as_absent():
    event = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": "stream 7", "ts": "12.5", "dur": 3,
             "args": {"stream": "7", "device": None, "correlation": 10**30, "bytes": "many"}}  # fmt: skip
    trace, outcome = read_kineto([document([event, {"ph": "X", "ts": {}}, *launch(1, 40.0)])])
    assert outcome.lost == 0
    first = trace.events[0:1]
    assert (first.stream.tolist(), first.correlation.tolist(), first.bytes.tolist()) == ([7], [-1], [-1])
    assert len(trace.events) == 4


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"traceEvents": 3}', b'{"traceEvents": [', b"\x1f\x8b\x08rubbish", b"\0" * 99]
)
def test_what_is_no_trace_is_refused(data):
    trace, outcome = read_kineto([data])
    assert outcome.status == "refused"
    assert len(trace.events) == 0


def test_a_bomb_ends_early(monkeypatch):
    monkeypatch.setattr(kineto_reader, "_UNPACKED_BYTES", 1 << 20)
    bomb = gzip.compress(b'{"schemaVersion":1,"traceEvents":[' + b" " * (64 << 20))
    _, outcome = read_kineto([bomb])
    assert outcome.status == "refused"
    assert outcome.lost


@given(st.binary(max_size=300), st.integers(0, 10_000))
@settings(max_examples=200, deadline=None)
def test_any_damage_ends_in_an_outcome(junk, at):
    data = document([one for number in range(10) for one in launch(number, 50.0 * number)])
    at = min(at, len(data))
    trace, outcome = read_kineto([data[:at] + junk + data[at + len(junk) :]])
    assert outcome.status in {"read", "repaired", "refused"}
    assert (trace.events.duration_us >= 0).all()


def test_recognizes_a_trace_by_its_head():
    assert is_kineto(b'{"schemaVersion": 1, "traceEvents": []}')
    assert not is_kineto(b'{"temporal": []}')
    assert not is_kineto(b'[{"ph": "X"}]')


def test_finds_traces_among_other_files(tmp_path):
    write(tmp_path / "host.pt.trace.json", launch(1))
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "rank1.json.gz").write_bytes(gzip.compress(document(launch(1))))
    (tmp_path / "other.json").write_text('{"a": 1}')
    (tmp_path / "notes.txt").write_text("hello")
    _, found = find_traces(tmp_path)
    assert [info.key for info in found] == ["deep/rank1.json.gz", "host.pt.trace.json"]


def test_ranks_come_from_the_trace_or_its_name(tmp_path):
    write(tmp_path / "a.json", launch(1), distributedInfo={"rank": 5})
    write(tmp_path / "rank_2.json", launch(1))
    assert list(GpuTraces(tmp_path).ranks) == [2, 5]


def test_a_single_file_is_a_source(tmp_path):
    assert list(GpuTraces(write(tmp_path / "rank0.json", launch(1))).ranks) == [0]


def test_traces_of_one_rank_are_joined(tmp_path):
    for number in range(3):
        write(tmp_path / f"window{number}.json", launch(1, 1e9 * number), distributedInfo={"rank": 0})
    gpu = GpuTraces(tmp_path)
    assert gpu.temporal_breakdown()["compute_us"].tolist() == [60.0]
    assert len(gpu.launch_statistics()) == 3


def test_no_trace_is_an_error(tmp_path):
    with pytest.raises(SourceError, match="no traces"):
        GpuTraces(tmp_path)


def test_copies_have_a_size():
    copy = {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "pid": 0, "tid": 7, "ts": 1, "dur": 2,
            "args": {"stream": 7, "bytes": 4000}}  # fmt: skip
    trace, _ = read_kineto([document([copy])])
    assert trace.events.category.tolist() == [MEMCPY]
    assert trace.events.bytes.tolist() == [4000]
