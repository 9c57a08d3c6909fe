"""Arrow reads system metrics like `system_reader`, which reads all files of another form."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm_profiler.formats.system_reader import account, read_system
from sm_profiler.formats.system_table import read_table

DATA = Path(__file__).parents[1] / "data" / "formats"
FILES = sorted(DATA.rglob("*.algo-*.json"))
LINE = (
    '{"Type":"cpu","Name":"cpu0","Dimension":"CPUUtilization","Value":1.5,"NodeId":"algo-1","Timestamp":1700000000.25}'
)
TEXT = st.text(st.characters(codec="utf-8"), max_size=6)
NUMBER = st.one_of(st.integers(-(10**20), 10**20), st.floats(allow_nan=False, allow_infinity=False))


def assert_same(data, *, taken):
    fast, (rows, outcome) = read_table(data, "algo-7"), read_system(data, "algo-7")
    assert (fast is not None) == taken
    if fast is None:
        return
    fast, accounted = account(fast)
    assert accounted == outcome
    assert fast.timestamp.tolist() == rows.timestamp.tolist()
    assert fast.value.tolist() == rows.value.tolist()
    assert fast.heads == rows.heads
    assert fast.head.tolist() == rows.head.tolist()
    assert fast.head.dtype == np.int32


def test_reads_real_files():
    assert FILES
    taken = 0
    for file in FILES:
        data = file.read_bytes()
        compact = b"\n".join(json.dumps(json.loads(line), separators=(",", ":")).encode() for line in data.splitlines())
        fast = read_table(compact, "algo-7")
        taken += fast is not None
        assert_same(compact, taken=fast is not None)
        assert_same(data, taken=read_table(data, "algo-7") is not None)
    assert taken == len(FILES)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(TEXT, TEXT, TEXT, NUMBER, TEXT, NUMBER), min_size=1, max_size=12))
def test_reads_any_text_and_number_alike(records):
    keys = ("Type", "Name", "Dimension", "Value", "NodeId", "Timestamp")
    lines = [
        json.dumps(dict(zip(keys, record, strict=True)), separators=(",", ":"), ensure_ascii=False)
        for record in records
    ]
    data = "\n".join(lines).encode()
    plain = not any(
        mark in text for record in records for text in record if isinstance(text, str) for mark in ',}:"\\\r'
    )
    odd = any(not text.isprintable() for record in records for text in record if isinstance(text, str))
    fast = read_table(data, "algo-7")
    if plain and not odd:
        assert fast is not None
    assert_same(data, taken=fast is not None)


def test_numbers_by_first_appearance_and_takes_the_node_from_the_file_name():
    lines = [
        LINE.replace("cpu0", name).replace("algo-1", node)
        for name, node in [("b", ""), ("a", "n"), ("b", "n"), ("b", "")]
    ]
    data = "\n".join(lines).encode()
    assert_same(data, taken=True)
    rows = read_table(data, "algo-7")
    assert rows.head.tolist() == [0, 1, 2, 0]
    assert [head[1::2] for head in rows.heads] == [("b", "algo-7"), ("a", "n"), ("b", "n")]


@pytest.mark.parametrize(
    "line",
    [
        LINE.replace('"Type"', '"Name"', 1).replace('"Name":"cpu0"', '"Type":"cpu0"'),
        LINE.replace('"Value"', '"Timestamp"', 1),
        LINE.replace('"NodeId":"algo-1",', ""),
        LINE.replace("1.5", '"1.5"'),
        LINE.replace("1.5", "null"),
        LINE.replace("1.5", "NaN"),
        LINE.replace("1.5", "1e999"),
        LINE.replace("1.5", ""),
        LINE.replace('"cpu0"', "null"),
        LINE.replace("cpu0", r"a\u0041"),
        LINE.replace("cpu0", "a\tb"),
        LINE.replace("cpu0", "a:b"),
        LINE.replace("cpu0", 'a"b'),
        LINE[:-1] + ',"More":1}',
        LINE[:-20],
        LINE + ",",
        "[]",
        "",
    ],
)
def test_leaves_other_forms_to_the_other_reader(line):
    for lines in ([line], [LINE, line, LINE]):
        if lines[1:] and not line:
            continue  # empty lines are nothing
        assert read_table("\n".join(lines).encode(), "algo-1") is None


def test_counts_times_out_of_range():
    data = "\n".join([LINE, LINE.replace("1700000000.25", "-5"), LINE.replace("1700000000.25", "1e300")]).encode()
    assert_same(data, taken=True)
    assert account(read_table(data, "algo-7"))[1].lost == 2
    assert read_table(LINE.encode().replace(b"cpu0", b"\xff\xfe"), "algo-7") is None
