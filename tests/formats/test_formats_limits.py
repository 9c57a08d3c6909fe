"""Small files that would take much time or memory are read within bounds, and what is left out is counted."""

import gzip
import math
import subprocess
import sys
import time

import pytest

from sm_profiler.formats import trace_reader, trace_records
from sm_profiler.formats.outcome import Tally, clean, most_events, most_texts, objects
from sm_profiler.formats.system_reader import read_system
from sm_profiler.formats.trace_reader import read_trace
from sm_profiler.formats.trace_records import MAX_SIZES, validated

MEGABYTE = 1 << 20
HOSTILE = {
    "newlines after a brace": b"[{" + b"\n" * MEGABYTE,
    "braces": b"[" + b"{" * MEGABYTE,
    "braces on lines": b"[" + b"\n{" * (MEGABYTE // 4),
    "objects that never close": b"[" + b'{"a":[1,\n' * (MEGABYTE // 4),
    "long objects that never close": b"[" + (b'{"a":[' + b"1," * 5000 + b"\n") * 100,
    "strings that never close": b"[" + b'\n{"' * (MEGABYTE // 4),
    "blanks between objects": (b"{}" + b" " * 1000) * 1000,
    "commas": b"{} ," * (MEGABYTE // 4) + b"{",
    "brackets": b"[" * MEGABYTE,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_reads_damaged_files_in_linear_time(name):
    data = HOSTILE[name]
    for read in (lambda data: read_trace(data, "n", "k"), lambda data: read_system(data, "algo-1")):
        began = time.process_time()
        rows, outcome = read(data)
        assert time.process_time() - began < 20  # quadratic ones took minutes to days
        assert len(rows.head) == 0
        assert outcome.status != "read"


def test_keeps_all_whole_records_of_a_damaged_file():
    event = b'{"ph":"X","name":"a","pid":1,"ts":1,"dur":1}'
    lines = [event, b'{"ph":"X","na', event, b'{"args": {"deep": [' * 2000, event] * 50
    rows, outcome = read_trace(b"[\n" + b",\n".join(lines) + b"\n]", "n", "k")
    assert len(rows.start_us) == 150
    assert outcome.lost == 100


def test_bounds_the_memory_of_a_small_compressed_file():
    script = """
import gzip, resource, sys
from sm_profiler.formats.trace_reader import read_trace
from sm_profiler.formats.trace_records import MAX_SIZES, validated
read_trace(b"[]", "n", "k")
data = gzip.compress(b"[" + b"{}," * 22_000_000 + b"{}]")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
resource.setrlimit(resource.RLIMIT_DATA, (before * 1024 + (400 << 20),) * 2)
rows, outcome = read_trace(data, "n", "k")
print(len(data), len(rows.start_us), outcome.status, outcome.lost)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    size, rows, status, lost = done.stdout.split()
    assert int(size) < 70_000
    assert (rows, status) == ("0", "refused")
    assert 21_000_000 < int(lost) < 23_000_000  # estimated from the part of the file that was unpacked


def test_counts_records_beyond_the_unpacked_size(monkeypatch):
    monkeypatch.setattr(trace_reader, "UNPACKED_BYTES", MEGABYTE)
    event = b'{"ph":"X","name":"a","pid":1,"ts":1,"dur":1},\n'
    rows, outcome = read_trace(gzip.compress(b"[" + event * 200_000), "n", "k")
    assert outcome.status == "repaired"
    assert 0 < len(rows.start_us) < 200_000
    assert len(rows.start_us) + outcome.lost == pytest.approx(200_000, rel=0.02)


def test_counts_records_beyond_the_limit(monkeypatch):
    monkeypatch.setattr(trace_reader, "MAX_RECORDS", 1000)
    event = b'{"ph":"X","name":"a","pid":1,"ts":1,"dur":1}'
    for other in (event, event.replace(b"X", b"i")):
        rows, outcome = read_trace(b"[" + b",".join([event] * 1500 + [other]) + b"]", "n", "k")
        assert (len(rows.start_us), outcome.status, outcome.lost) == (1000, "repaired", 501)


def test_counts_metadata_and_open_events_beyond_the_limit(monkeypatch):
    monkeypatch.setattr(trace_records, "MAX_UNJOINED", 100)
    event = b'{"ph":"X","name":"a","pid":1,"ts":1,"dur":1}'
    own = b'{"ph":"M","name":"sm_profiler/process","args":{"rank":1}}'
    rows, outcome = read_trace(b"[" + b",".join([own] * 1500 + [event]) + b"]", "n", "k")
    assert (len(rows.metadata), len(rows.start_us), outcome.lost) == (1000, 1, 500)
    begin, end = b'{"ph":"B","name":"b","pid":2,"ts":1}', b'{"ph":"E","pid":2,"tid":3,"ts":2}'
    rows, outcome = read_trace(b"[" + b",".join([begin] * 80 + [end] * 80) + b"]", "n", "k")
    assert (len(rows.open_events), len(rows.loose_ends), outcome.lost) == (80, 20, 60)
    rows, outcome = read_trace(b"[" + b",".join([begin, end.replace(b'"tid":3,', b"")] * 500) + b"]", "n", "k")
    assert (len(rows.start_us), outcome.lost) == (500, 0)


@pytest.mark.parametrize("form", ["array", "object", "cut array", "array with a phase announced at its end"])
def test_reads_large_files_like_small_ones(form, monkeypatch):
    events = [
        b'{"ph":"X","name":"},{ %d","pid":%d,"ts":%d,"dur":3,"args":{"deep":{"l":[[1],[2]]},"step_num":%d}}'
        % (at, at % 3, at, at)
        for at in range(500)
    ]
    announced = b'{"ph":"M","name":"process_name","pid":1,"args":{"name":"Forward"}}'
    instant = b'{"ph":"i","name":"now","pid":1,"ts":7}'
    data = {
        "array": b"[\n" + b",\n".join([announced, *events]) + b"\n]\n",
        "object": b'{"a": [1], "traceEvents": [\n' + b",\n  ".join([*events, announced]) + b'], "baseTimeNanoseconds": 5000000}',
        "cut array": b"[" + b", ".join([announced, *events]) + b', {"ph": "X", "na',
        "array with a phase announced at its end": b"[" + b",".join([*events, instant, announced]) + b"]",
    }[form]  # fmt: skip
    small, expected = read_trace(data, "n", "k")
    monkeypatch.setattr(trace_reader, "CHUNK_BYTES", 2000)
    large, outcome = read_trace(data, "n", "k")
    assert outcome == expected
    assert len(large.start_us) in {500, 501}
    assert large.start_us.tolist() == small.start_us.tolist()
    assert [large.heads[code] for code in large.head] == [small.heads[code] for code in small.head]
    assert [large.others[code] for code in large.argument] == [small.others[code] for code in small.argument]


def test_reads_large_system_files_like_small_ones(monkeypatch):
    line = b'{"Type":"cpu","Name":"cpu%d","Dimension":"CPUUtilization","Value":%d,"NodeId":"algo-1","Timestamp":5}\n'
    lines = [line % (at % 5, at) for at in range(300)]
    lines[100] = b'{"Type":"cpu","Na\n'
    small, expected = read_system(b"".join(lines), "algo-1")
    monkeypatch.setattr("sm_profiler.formats.system_reader.CHUNK_BYTES", 1000)
    large, outcome = read_system(b"".join(lines), "algo-1")
    assert outcome == expected
    assert outcome.lost == 1
    assert large.value.tolist() == small.value.tolist()
    assert [large.heads[code] for code in large.head] == [small.heads[code] for code in small.head]


def test_numbers_with_equal_hashes_do_not_make_reading_quadratic():
    prime = (1 << 61) - 1  # Python hashes whole numbers modulo this one
    event = b'{"ph":"X","name":"a","pid":%d,"tid":0,"ts":1,"dur":1}'
    data = b"[" + b",\n".join([event % 1, *(event % (prime * factor) for factor in range(5, 20_000))]) + b"]"
    began = time.process_time()
    rows, outcome = read_trace(data, "n", "k")
    assert time.process_time() - began < 10  # 40 s when all were distinct keys of one dictionary
    assert len(rows.head) + outcome.lost == 19_996


def test_a_file_of_many_nodes_and_metrics_keeps_those_within_the_limits():
    line = '{"Type":"cpu","Name":"cpu%d","Dimension":"CPUUtilization","NodeId":"algo-%d","Timestamp":1,"Value":50}'
    rows, outcome = read_system("\n".join(line % (0, node) for node in range(1, 101)).encode(), "algo-1")
    assert [head[3] for head in rows.heads] == [f"algo-{node}" for node in range(1, 9)]
    assert (rows.head.tolist(), outcome.lost, outcome.status) == (list(range(8)), 92, "repaired")
    rows, outcome = read_system("\n".join(line % (cpu, 1) for cpu in range(100_100)).encode(), "algo-1")
    assert (len(rows.head), outcome.lost) == (100_000, 100)


@pytest.mark.parametrize("start", [b"", b"[", b'{"traceEvents":['])
def test_a_sparse_file_is_refused_without_being_searched_for_records(start):
    data = start + bytes(100 * MEGABYTE)
    for read in (lambda data: read_trace(data, "n", "k"), lambda data: read_system(data, "algo-1")):
        began = time.process_time()
        rows, outcome = read(data)
        assert time.process_time() - began < 5
        assert (len(rows.head), outcome.status, outcome.lost) == (0, "refused", 1)


@pytest.mark.long
def test_a_small_compressed_file_has_bounded_events_names_and_arguments():
    def one(number: int) -> bytes:
        return b'{"ph":"X","name":"%x","ts":1,"dur":1,"args":{"x":%d}}' % (number, number)

    data = gzip.compress(b"[" + b",".join(map(one, range(300_000))) + b"]")
    rows, outcome = read_trace(data, "n", "k")
    most = most_texts(len(data))
    assert len(rows.heads) + len(rows.numbers) <= most < 600_000
    assert outcome.status == "repaired"
    assert outcome.lost == 300_000 - len(rows.start_us)
    data = gzip.compress(b"[" + b",".join([b'{"ph":"X","name":"","ts":1,"dur":1}'] * 600_000) + b"]")
    rows, outcome = read_trace(data, "n", "k")
    assert len(rows.start_us) <= most_events(len(data)) < 600_000
    assert outcome.lost


def test_damaged_text_of_many_tiny_objects_costs_little():
    """An object costs as much time as an event, which has many more bytes."""
    text = b'[{"ph":"X","name":"a","ts":1,"dur":1,"args":{"x":[' + b"{}," * 1_000_000
    tally = Tally()
    assert len(list(objects(clean(text, tally), tally))) < len(text) // 10
    assert tally.dropped


@pytest.mark.parametrize(
    "sizes",
    [{}, "x", [1, 2], [[1, 0]], [[1, 5e-324]], [[1, "x"]], [[1, math.nan]], [[1, 2, 3]], [[1, 2]] * (MAX_SIZES + 1)],
)
def test_sizes_of_inputs_that_are_no_table_are_left_out(sizes):
    assert validated({"input_sizes": sizes}) == {}
    assert validated({"input_sizes": [[1, 2], [3, 4]]}) == {"input_sizes": [[1, 2], [3, 4]]}
