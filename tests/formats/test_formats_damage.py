"""Real records, damaged as real files are: no error, and every lost record is counted."""

import gzip
import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm_profiler.formats.system_reader import read_system
from sm_profiler.formats.trace_reader import read_trace

DATA = Path(__file__).parents[1] / "data" / "formats"
TRACE = (
    DATA / "merge_traces/framework/pevents/2020071317/1594662624718694_905-b88ab1bb8259_pythontimeline.json"
).read_bytes()
SYSTEM = (DATA / "test_traces/system/incremental/1591748100.algo-1.json").read_bytes()
TRACE_LINES = [line.rstrip(b",") for line in TRACE.split(b"\n")[1:-2]]
SYSTEM_LINES = SYSTEM.splitlines()
HEAD, EVENTS = ([line for line in TRACE_LINES if mark in line] for mark in (b'"ph": "M"', b'"ph": "X"'))


def field(line: bytes, key: bytes, value: bytes) -> bytes:
    """The record with the number of a key replaced."""
    before, _, after = line.partition(b'"' + key + b'":')
    digits = after.lstrip()
    end = next(i for i, c in enumerate(digits) if c in b",}")
    return before + b'"' + key + b'": ' + value + digits[end:]


def name(line: bytes, extra: bytes) -> bytes:
    key = b'"name": "' if b'"name": "' in line else b'"Name":"'
    return line.replace(key, key + extra, 1)


TIME = {"trace": b"ts", "system": b"Timestamp"}
# Each damage with how many records it costs.
DAMAGES = {
    "cut behind": (lambda line, _kind, at: line[: 1 + at % (len(line) - 2)], 1),
    "cut before": (lambda line, _kind, at: line[1 + at % (len(line) - 1) :], 1),
    "garbage": (lambda _line, _kind, at: b"\x00\xff!?" + str(at).encode(), 1),
    "not a number": (lambda line, kind, _at: field(line, TIME[kind], b"NaN"), 1),
    "infinite": (lambda line, kind, _at: field(line, TIME[kind], b"1e999"), 1),
    "over 64 bits": (lambda line, kind, at: field(line, TIME[kind], b"9" * (20 + at % 20)), 1),
    "before 1970": (lambda line, kind, _at: field(line, TIME[kind], b"-99999999999999999"), 1),
    "text for a number": (lambda line, kind, _at: field(line, TIME[kind], b'"soon"'), 1),
    "null": (lambda line, kind, _at: field(line, TIME[kind], b"null"), 1),
    "invalid UTF-8": (lambda line, _kind, _at: name(line, b"\xff\xfe"), 0),
    "control characters": (lambda line, _kind, _at: name(line, b"\x00\x01\x1f"), 0),
    "line break in a text": (lambda line, _kind, _at: name(line, b"a\nb\tc"), 0),
    "unknown keys": (lambda line, _kind, _at: line[:-1] + b', "extra": {"deep": [1, {"er": null}], "big": 123456789012345678901234}}', 0),
    "twice": (lambda line, kind, _at: line + (b",\n" if kind == "trace" else b"\n") + line, -1),
}  # fmt: skip
PLANS = st.dictionaries(
    st.integers(0, 17), st.tuples(st.sampled_from(sorted(DAMAGES)), st.integers(0, 10**6)), max_size=8
)


def damaged(lines: list[bytes], kind: str, plan: dict[int, tuple[str, int]]) -> tuple[list[bytes], int]:
    lines, lost = list(lines), 0
    for number, (how, at) in plan.items():
        row = (
            2 * number % len(lines)
        )  # never two neighbours: a record cut behind and one cut before can make a whole one
        damage, cost = DAMAGES[how]
        if lines[row] in SYSTEM_LINES or lines[row] in EVENTS:  # once a line
            lines[row] = damage(lines[row], kind, at)
            lost += cost
    return lines, lost


@settings(max_examples=300, deadline=None)
@given(PLANS)
def test_counts_every_lost_event_of_a_damaged_trace(plan):
    lines, lost = damaged(EVENTS, "trace", plan)
    rows, outcome = read_trace(b"[\n" + b",\n".join(HEAD + lines) + b"\n]", "algo-1-0", "pythontimeline")
    assert len(rows.start_us) == len(EVENTS) - lost
    assert outcome.lost == sum(1 for how, _ in applied(plan, EVENTS) if DAMAGES[how][1] == 1)
    assert outcome.status == ("read" if not needs_repair(plan, EVENTS) else "repaired")


@settings(max_examples=300, deadline=None)
@given(PLANS)
def test_counts_every_lost_record_of_damaged_system_metrics(plan):
    lines, lost = damaged(SYSTEM_LINES, "system", plan)
    rows, outcome = read_system(b"\n".join(lines) + b"\n", "algo-1")
    assert len(rows.value) == len(SYSTEM_LINES) - lost
    assert outcome.lost == sum(1 for how, _ in applied(plan, SYSTEM_LINES) if DAMAGES[how][1] == 1)


def applied(plan, lines):
    first = {}
    for number, damage in plan.items():
        first.setdefault(2 * number % len(lines), damage)
    return list(first.values())


def needs_repair(plan, lines):
    harmless = {"unknown keys", "twice"}
    return any(how not in harmless and how != "line break in a text" for how, _ in applied(plan, lines))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(TRACE)))
def test_reads_a_truncated_trace_up_to_its_last_whole_record(at):
    rows, outcome = read_trace(TRACE[:at], "n", "k")
    whole = [line for line in TRACE[:at].split(b"\n") if line.rstrip(b",").endswith(b"}}") and b'"X"' in line]
    assert len(rows.start_us) == len(whole)
    rest = TRACE[:at].rpartition(b"\n")[2]
    is_cut = bool(rest.strip(b"[],")) and not is_json(rest.rstrip(b","))
    assert outcome.lost == is_cut
    assert outcome.status == "read" if at >= len(TRACE) - 1 else outcome.status in {"repaired", "refused", "read"}


def is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@settings(max_examples=400, deadline=None)
@given(
    st.randoms(use_true_random=False),
    st.sampled_from(["flip", "delete", "insert", "shuffle", "noise", "gzip", "object"]),
)
def test_raises_no_error_for_any_content(source: random.Random, how):
    data = bytearray(source.choice([TRACE, SYSTEM, b"[]", b"{", b'{"traceEvents": []}', b"[[[[", b"\x1f\x8b", b"nul"]))
    for _ in range(source.randrange(1, 30)):
        at = source.randrange(len(data) + 1)
        if how == "flip" and at < len(data):
            data[at] ^= 1 << source.randrange(8)
        elif how == "delete":
            del data[at : at + source.randrange(200)]
        elif how == "insert":
            data[at:at] = source.choice([b"\x00", b"\xff", b"\n", b"{", b"}", b"[" * 3000, b'"', b"\\", b",", b"1e400"])
        elif how == "shuffle":
            parts = data.split(b"\n")
            source.shuffle(parts)
            data = bytearray(b"\n".join(parts))
        elif how == "noise":
            data = bytearray(source.randbytes(source.randrange(2000)))
    if how == "gzip":
        data = bytearray(gzip.compress(bytes(data)))
        data[source.randrange(len(data))] ^= 255
        del data[source.randrange(len(data)) :]
    if how == "object":
        data = bytearray(b'{"schemaVersion": 1, "traceEvents": ' + data[: source.randrange(len(data) + 1)])
    for rows, outcome in (read_trace(bytes(data), "n", "k"), read_system(bytes(data), "algo-1")):
        assert outcome.status in {"read", "repaired", "refused"}
        assert outcome.lost >= 0
        assert (outcome.status == "read") <= (outcome.lost == 0)
        assert len(rows.head) == 0 or rows.head.max() < len(rows.heads)


@pytest.mark.parametrize("data", [b"", b"\n", b"  \n \n"])
def test_refuses_empty_files(data):
    for _, outcome in (read_trace(data, "n", "k"), read_system(data, "algo-1")):
        assert (outcome.status, outcome.lost, outcome.reason) == ("refused", 0, "empty")


def test_repairs_the_corrupt_file_of_a_real_job():
    rows, outcome = read_system((DATA / "1591160699.algo-1.json.corrupt").read_bytes(), "algo-1")
    assert len(rows.value) + outcome.lost == len((DATA / "1591160699.algo-1.json.corrupt").read_bytes().splitlines())
    assert outcome.status == "repaired"
    assert outcome.lost > 0


def test_counts_negative_and_missing_durations():
    lines = [field(EVENTS[0], b"dur", b"-1"), EVENTS[1], EVENTS[2].replace(b'"dur"', b'"how_long"')]
    rows, outcome = read_trace(b"[\n" + b",\n".join(HEAD + lines) + b"\n]", "n", "k")
    assert len(rows.start_us) == 1
    assert (outcome.status, outcome.lost) == ("repaired", 2)
    assert "negative duration: 1" in outcome.reason


@pytest.mark.parametrize("number", [b"1e999", b"-1e400", b"[" * 200_000 + b"]" * 200_000])
@pytest.mark.parametrize("name", [b"process_name", b"sm_profiler/process", b"thread_name"])
def test_counts_metadata_with_numbers_out_of_range(name, number):
    broken = (
        b'{"name": "' + name + b'", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": %b}}' % number
    )
    for lines in ([*HEAD, broken, *EVENTS], [broken, *HEAD, *EVENTS], [*HEAD, *EVENTS, broken]):
        rows, outcome = read_trace(b"[\n" + b",\n".join(lines) + b"\n]", "n", "k")
        assert (len(rows.start_us), rows.metadata) == (len(EVENTS), ())
        assert (outcome.status, outcome.lost) == ("repaired", 1)
