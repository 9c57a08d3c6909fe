"""Reading of torch.profiler's traces: kinds of writers, damage, blocks, and several files of a job."""

import gzip
import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm_profiler.analysis.gpu import GpuTraces, find_traces
from sm_profiler.errors import SourceError
from sm_profiler.formats import kineto_reader
from sm_profiler.formats.kineto_reader import KERNEL, MEMCPY, OPERATOR, RUNTIME, is_kineto, read_kineto
from sm_profiler.formats.outcome import most_texts


def launch(  # one argument a time
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
    monkeypatch.setattr(kineto_reader, "CHUNK_BYTES", 1000)
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
    monkeypatch.setattr(kineto_reader, "UNPACKED_BYTES", 1 << 20)
    bomb = gzip.compress(b'{"schemaVersion":1,"traceEvents":[' + b" " * (64 << 20))
    _, outcome = read_kineto([bomb])
    assert outcome.status == "refused"
    assert outcome.lost


@pytest.mark.parametrize("key", ["name", "tid", "args"])
def test_a_small_compressed_file_has_bounded_events_and_names(key):
    values = {"name": b'"name":"%x"', "tid": b'"tid":%d', "args": b'"args":{"Input Dims":[%d]}'}
    records = b",".join(b'{"ph":"X",' + values[key] % number + b"}" for number in range(400_000))
    data = gzip.compress(b'{"schemaVersion":1,"traceEvents":[' + records + b"]}")
    trace, outcome = read_kineto([data])
    assert len(trace.events) < most_texts(len(data)) + 50_000 < 400_000  # 50,000: the records of a chunk
    assert outcome.lost == 400_000 - len(trace.events)


def test_what_is_beside_the_events_is_bounded():
    most = kineto_reader.MAX_ELEMENTS
    for count, found in ((most // 2, True), (most + 1, False)):
        others = b"[" + b",".join([b"{}"] * (count // 2 + 1)) + b"]"
        event = b'"traceEvents":[{"ph":"X"}]'
        for data in (b'{"x":' + others + b"," + event + b"}", b"{" + event + b',"x":' + others + b"}"):
            assert ("x" in read_kineto([data])[0].properties) is found


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


def test_traces_with_huge_numbers_of_launches_are_joined(tmp_path):
    for index, huge in enumerate((2**63 - 1, 2**62)):
        write(tmp_path / f"{index}.json", [*launch(huge), *launch(3, 100.0)], distributedInfo={"rank": 0})
    events = GpuTraces(tmp_path, last_step=True).ranks[0].events
    numbers = events.correlation[events.correlation >= 0]
    assert len(set(numbers.tolist())) == 4
    assert all(np.count_nonzero(numbers == one) == 2 for one in numbers)


def test_no_trace_is_an_error(tmp_path):
    with pytest.raises(SourceError, match="no traces"):
        GpuTraces(tmp_path)


def test_copies_have_a_size():
    copy = {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "pid": 0, "tid": 7, "ts": 1, "dur": 2,
            "args": {"stream": 7, "bytes": 4000}}  # fmt: skip
    trace, _ = read_kineto([document([copy])])
    assert trace.events.category.tolist() == [MEMCPY]
    assert trace.events.bytes.tolist() == [4000]


def test_columns_of_operators_and_collectives():
    forward = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 9, "tid": 9, "ts": 0, "dur": 4,
               "args": {"Sequence number": 7, "Fwd thread id": 0, "Input Dims": [[4, 8], [8, 2]], "Input type": ["float"]}}  # fmt: skip
    backward = {**forward, "name": "MmBackward0", "ts": 9, "args": {"Sequence number": 7, "Fwd thread id": 1}}
    reduce = {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllReduce", "pid": 0, "tid": 7, "ts": 20, "dur": 4,
              "args": {"stream": "7", "Collective name": "allreduce", "In msg nelems": 12, "Group size": 4, "dtype": "Float"}}  # fmt: skip
    trace, _ = read_kineto([document([forward, backward, reduce, {**reduce, "ts": 30}])])
    events = trace.events
    assert events.sequence.tolist() == [7, 7, -1, -1]
    assert events.is_backward.tolist() == [False, True, False, False]
    assert (events.inputs.tolist(), trace.inputs[0].shapes) == ([0, -1, -1, -1], "[[4, 8], [8, 2]]")
    assert (events.collective.tolist(), trace.collectives[0].in_elements) == ([-1, -1, 0, 0], 12)
    assert events.stream.tolist() == [-1, -1, 7, 7]


def test_arguments_of_rocm_do_not_slow_down():
    call = {"ph": "X", "cat": "hip_runtime", "name": "hipMemcpyWithStream", "pid": 1, "tid": 1, "ts": 1, "dur": 2,
            "args": {"stream": "0x0", "correlation": "117"}}  # fmt: skip
    trace, outcome = read_kineto([document([call, *launch(1, 5.0)])])
    assert (outcome.status, trace.events.stream[0], trace.events.correlation[0]) == ("read", -1, 117)


def test_nan_and_infinite_numbers_cost_no_event():
    events = [one for number in range(20) for one in launch(number, 50.0 * number, name="inf, NaN: 3")]
    for one in events:
        one["args"]["memory bandwidth (GB/s)"] = float("inf")
        one["args"]["est. achieved occupancy %"] = float("nan")
    trace, outcome = read_kineto([document(events)])
    assert (len(trace.events), outcome.lost) == (60, 0)
    assert "infinite" in outcome.reason
    assert "inf, NaN: 3" in trace.events.name.values


def test_damage_in_the_middle_costs_little(monkeypatch):
    monkeypatch.setattr(kineto_reader, "CHUNK_BYTES", 4000)
    monkeypatch.setattr(kineto_reader, "SALVAGED_BYTES", 20_000)
    data = document([one for number in range(2000) for one in launch(number, 50.0 * number)])
    middle = len(data) // 2
    trace, outcome = read_kineto([data[:middle] + b"\x00\xff}{" + data[middle + 30 :]])
    assert outcome.status == "repaired"
    assert 1 <= outcome.lost <= 3
    assert len(trace.events) >= 6000 - 3


def test_events_without_a_sound_time_are_counted():
    bad = [{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "args": {"stream": 7}, **times} for times in (
        {"ts": 5, "dur": -3}, {"ts": 1e300, "dur": 1}, {"ts": "soon", "dur": 1}, {"ts": 5, "dur": 1e999},
    )]  # fmt: skip
    trace, outcome = read_kineto([document([*bad, *launch(1)])])
    assert (len(trace.events), outcome.status, outcome.lost) == (3, "repaired", 4)


def test_numbers_beyond_64_bits_count_as_absent():
    huge = 2**63
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": huge, "tid": -huge * 4, "ts": 1, "dur": 2,
              "args": {"stream": 2**31, "device": huge, "correlation": -huge - 1, "bytes": 2**100,
                       "Sequence number": 2**70, "Fwd thread id": 2**80, "In msg nelems": 2**90, "Collective name": "x"}}  # fmt: skip
    trace, _ = read_kineto([document([kernel, *launch(1, 5.0)])])
    first = trace.events[0:1]
    assert [getattr(first, name)[0] for name in ("stream", "device", "correlation", "bytes", "sequence")] == [-1] * 5
    assert len(trace.events) == 4


@pytest.mark.parametrize("arguments", [
    b'{"x": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",  # nested too deeply
    b'{"Input Dims": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    b'{"stream": 7, "stream": 8, "correlation": 1, "correlation": 2}',  # the last one counts
    b'{"note": "' + b"}, {" * 200_000 + b'"}',
    b'{"note": "' + b"x" * 3_000_000 + b'"}',
    b'{"Input Dims": "no list", "Input type": 7}',
    b"[1, 2]", b'"text"', b"null",
])  # fmt: skip
def test_hostile_arguments_leave_the_other_events(arguments):
    odd = (
        b'{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 7, "dur": 1, "args": ' + arguments + b"}"
    )
    before, after = (json.dumps(launch(number, 50.0 * number))[1:-1].encode() for number in (1, 2))
    trace, outcome = read_kineto([b'{"schemaVersion": 1, "traceEvents": [' + b", ".join([before, odd, after]) + b"]}"])
    assert len(trace.events) + outcome.lost >= 7
    assert len(trace.events) >= 6


def test_shapes_that_are_no_text_leave_the_trace():
    operator = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 5}
    data = document([{**operator, "args": {"Input Dims": ["?"], "Input type": ["float"]}}]).replace(b"?", b"\xff")
    trace, _ = read_kineto([data])
    assert [one.types for one in trace.inputs] == ['["float"]']


def test_an_endless_record_ends_the_reading(monkeypatch):
    monkeypatch.setattr(kineto_reader, "MAX_RECORD_BYTES", 1 << 20)
    head = document(launch(1))[:-2] + b', {"name": "'
    trace, outcome = read_kineto(itertools.chain([head], itertools.repeat(b"x" * 65536, 64)))
    assert (len(trace.events), outcome.status) == (3, "repaired")
