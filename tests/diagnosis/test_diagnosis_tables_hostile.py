"""Tables of times that are small as stored and large as read."""

import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sm_profiler.diagnosis import diagnose, is_table, read_table
from sm_profiler.diagnosis.table import reading as tables
from sm_profiler.diagnosis.table.columns import unit_of
from sm_profiler.diagnosis.table.files import lines, read_csv
from sm_profiler.errors import SourceError
from sm_profiler.report.recordings import report_table

PEAK = Path(__file__).parents[1] / "fuzz"
READ = """
import sys
from peak_memory import peak_bytes
from sm_profiler.diagnosis import read_table
from sm_profiler.errors import SourceError
import pyarrow.parquet
try:
    read_table(sys.argv[1])
except SourceError as error:
    print(error, file=sys.stderr)
print(peak_bytes() >> 20)
"""


def peak_mib(path):
    """Return the peak memory of a process that reads a table."""
    done = subprocess.run(
        [sys.executable, "-c", READ, path], env={"PYTHONPATH": f"{PEAK}:{PEAK.parents[1]}"}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.parametrize("text", [b"step,seconds\n" + b"1,1\n" * (5 << 20), b"step,seconds\n" + b"1" * (20 << 20)])
def test_a_gzip_file_that_unpacks_to_too_much_is_refused_before_its_first_line(text):
    with pytest.raises(SourceError, match=r"^times.csv.gz: unpacks to more than 16 MiB"):
        next(lines(gzip.compress(text), "times.csv.gz"))


def test_a_gzip_file_is_unpacked_up_to_its_limit(monkeypatch):
    unpacked = []
    read = gzip.GzipFile.read
    monkeypatch.setattr(gzip.GzipFile, "read", lambda *args: unpacked.append(len(piece := read(*args))) or piece)
    with pytest.raises(SourceError, match="unpacks to more than"):
        read_csv(gzip.compress(b"1,1\n" * (16 << 20)), "times.csv.gz")
    assert 16 << 20 < sum(unpacked) < 18 << 20


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_the_columns_of_a_table_are_limited(suffix, tmp_path):
    path = tmp_path / f"times.{suffix}"
    columns = {"step": [1], "seconds": [1.5], **{f"c{at}": [1] for at in range(20_000)}}
    if suffix == "parquet":
        pq.write_table(pa.table(columns), path)
    elif suffix == "csv":
        path.write_text(",".join(columns) + "\n1,1.5\n")
    else:
        path.write_text(json.dumps({key: values[0] for key, values in columns.items()}))
    with pytest.raises(SourceError, match="20,002 columns; a table of times has at most 10,000"):
        read_table(path)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_column_with_a_long_name_is_left_out(suffix, tmp_path):
    path, name = tmp_path / f"times.{suffix}", "clip " * 100
    columns = {"step": list(range(20)), "seconds": [1.5] * 20, name: [1] * 20, "loss": [2] * 20}
    if suffix == "parquet":
        pq.write_table(pa.table(columns), path)
    elif suffix == "csv":
        path.write_text(
            "\n".join(",".join(map(str, row)) for row in [[*columns], *zip(*columns.values(), strict=True)])
        )
    else:
        path.write_text(
            "\n".join(json.dumps(dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True))
        )
    assert list(read_table(path).ledger.facts) == ["loss"]


def test_separators_in_a_name_are_tried_once():
    begun = time.process_time()
    assert [unit_of("_" * 10_000 + end) for end in ("x", "ms", "_us")] == [1.0, 1e-3, 1e-6]
    assert time.process_time() - begun < 1  # from each separator it would take minutes


def test_a_line_of_json_has_no_more_values_than_a_row(tmp_path):
    path = tmp_path / "times.jsonl"
    path.write_bytes(gzip.compress(b'{"step":1,"seconds":1,"x":[' + b"{}," * (4 << 20) + b"{}]}"))
    with pytest.raises(SourceError, match="line 1 has more values than a row of a table"):
        read_table(path)


@pytest.mark.parametrize(("name", "line"), [("times.csv", "1,1,ab" + "," * (1 << 20)), ("times.log", ':::MLLOG {"a":[' + "[]," * (1 << 20) + "0]}")])  # fmt: skip
def test_no_line_has_more_values_than_a_row(tmp_path, name, line):
    path = tmp_path / name
    path.write_text(f"step,seconds,rank\n{line}\n")
    with pytest.raises(SourceError, match="line 2 has more values than a row of a table"):
        read_table(path)


def test_a_rank_with_a_single_moment_has_no_step(tmp_path):
    path = tmp_path / "moments.csv"
    path.write_text("step,start,rank\n0,100,0\n" + "".join(f"{step},{100 + step / 2},1\n" for step in range(40)))
    assert [rank.name for rank in read_table(path).ledger.ranks] == ["1"]
    path.write_text("step,start,rank\n0,100,0\n0,100,1\n")
    with pytest.raises(SourceError, match="no rank has two steps"):
        read_table(path)


def test_columns_that_a_table_declares_and_rows_lack_take_no_memory(tmp_path):
    wide, keys = tmp_path / "wide.csv", tmp_path / "keys.jsonl"
    wide.write_text("step,seconds," + ",".join(f"c{at}" for at in range(6000)) + "\n" + "1,1.5\n2,1.5\n" * 6000)
    keys.write_text("\n".join(f'{{"step":{at},"seconds":1,"k{at}":1}}' for at in range(6000)))
    assert len(read_table(keys).ledger.ranks[0].steps) == 6000
    assert peak_mib(keys) < 250
    assert peak_mib(wide) < 250


@pytest.mark.long
def test_values_of_parquet_that_are_stored_once_take_their_memory_once(tmp_path):
    table = pa.table(
        {
            "step": np.arange(3000),
            "seconds": np.ones(3000),
            "rank": ["x" * 500_000] * 3000,
            "note": ["y" * 500_000] * 3000,
        }
    )
    pq.write_table(table, tmp_path / "times.parquet", compression="zstd")
    assert (tmp_path / "times.parquet").stat().st_size < 100_000
    assert peak_mib(tmp_path / "times.parquet") < 300


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"step": np.zeros(2_000_000, np.int64), "seconds": np.ones(2_000_000)}, {}, "more rows than a table has"),
        (
            {"step": np.arange(100), "seconds": np.ones(100), "rank": ["x" * 100_000 + str(at) for at in range(100)]},
            {"use_dictionary": False, "column_encoding": {"rank": "DELTA_BYTE_ARRAY"}}, "share their beginnings",
        ),
    ],
)  # fmt: skip
def test_rows_of_parquet_that_take_no_bytes_are_refused(tmp_path, columns, options, message):
    pq.write_table(pa.table(columns), tmp_path / "times.parquet", compression="zstd", **options)
    with pytest.raises(SourceError, match=message):
        read_table(tmp_path / "times.parquet")


def number(value):
    """Return a number in the form that footers have."""
    value, found = value << 1, b""
    while value >= 128:
        found, value = found + bytes([value & 127 | 128]), value >> 7
    return found + bytes([value])


def under_another_name(footer, _column):
    at = footer.rindex(b"rank")
    return footer[:at] + b"rbnk" + footer[at + 4 :]


def at_another_place(footer, column):
    """Let the column begin at the file's first page for readers that take 32 bits for a place; Arrow skips the field."""
    data, dictionary = number(column.data_page_offset), number(column.dictionary_page_offset)
    assert footer.count(b"\x26" + data + b"\x26" + dictionary) == 1
    first = bytes([8 | 128, *[128] * (len(data) - 2), 0])
    return footer.replace(b"\x26" + data + b"\x26" + dictionary, b"\x26" + dictionary + b"\x25" + first)


@pytest.mark.parametrize("lie", [under_another_name, at_another_place])
def test_a_parquet_footer_does_not_hide_a_column_from_the_check_of_its_size(tmp_path, lie):
    path = tmp_path / "times.parquet"
    long = ["x" * (100 << 20), *["0"] * 39_999]
    table = pa.table({"seconds": np.random.default_rng(0).random(40_000), "rank": long, "step": np.arange(40_000)})
    pq.write_table(
        table, path, compression={"seconds": "none", "rank": "zstd", "step": "none"}, use_dictionary=["rank"],
        write_statistics=False, dictionary_pagesize_limit=1 << 30, data_page_size=4096,
    )  # fmt: skip
    whole, column = path.read_bytes(), pq.ParquetFile(path).metadata.row_group(0).column(1)
    start = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    footer = lie(whole[start:-8], column)
    path.write_bytes(whole[:start] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    assert len(pq.ParquetFile(path).read_row_group(0, columns=["rank"])) == 40_000
    with pytest.raises(SourceError, match=r"its (columns are not those of its schema|footer is damaged)"):
        read_table(path)


def test_columns_of_parquet_in_columns_and_with_dots_are_none_of_a_table_and_harmless(tmp_path):
    path = tmp_path / "times.parquet"
    nested = [{"x": [1, 2], "y": {"z": "a"}}] * 30
    columns = {"a.b": ["c"] * 30, "nested": nested, "step": np.arange(30), "list": [[1]] * 30, "seconds": np.ones(30)}
    pq.write_table(pa.table(columns), path)
    assert read_table(path).rows == 30


def test_a_column_of_parquet_with_fewer_values_than_rows_is_damage(tmp_path, monkeypatch):
    path = tmp_path / "times.parquet"
    pq.write_table(pa.table({"step": np.arange(300), "seconds": np.ones(300), "rank": ["0"] * 300}), path)
    read = pq.ParquetFile.read_row_group

    def shortened(*args, columns, **options):
        table = read(*args, columns=columns, **options)
        return table[:0] if columns == ["rank"] else table

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", shortened)
    with pytest.raises(SourceError, match="damaged: column rank has not as many values as rows"):
        read_table(path)


def test_names_that_are_no_text_are_damage(tmp_path):
    path = tmp_path / "times.parquet"
    pq.write_table(
        pa.table({"step": np.arange(300), "seconds": np.ones(300), "rank": ["host"] * 300}), path, compression="none"
    )
    path.write_bytes(path.read_bytes().replace(b"host", b"\xb0ost", 1))
    with pytest.raises(SourceError, match="damaged: 'utf-8' codec can't decode"):
        read_table(path)


def test_damage_in_the_statistics_of_a_parquet_column_does_not_end_the_process(tmp_path):
    path = tmp_path / "times.parquet"
    table = pa.table({"step": np.arange(40), "seconds": np.ones(40), "rank": ["0", "1"] * 20})
    pq.write_table(table, path, compression="none", use_dictionary=False)
    whole = path.read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    damaged = tmp_path / "damaged.parquet"
    places = [at for at in range(footer, len(whole) - 8) if whole[at] == 0x26]  # a list of two: its length is changed
    places += [at for at in range(footer, len(whole) - 8) if whole[at] >> 4 == 2]
    read = "import sys; from sm_profiler.diagnosis import read_table; from sm_profiler.errors import SourceError\n"
    read += "whole = open(sys.argv[1], 'rb').read()\nfor at in map(int, sys.argv[3:]):\n"
    read += "    open(sys.argv[2], 'wb').write(whole[:at] + bytes([whole[at] ^ 0x30]) + whole[at + 1:])\n"
    read += "    try:\n        read_table(sys.argv[2])\n    except SourceError:\n        pass\n"
    done = subprocess.run(
        [sys.executable, "-c", read, path, damaged, *map(str, places)], capture_output=True, text=True, timeout=100, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-1000:]


def test_times_and_names_of_any_kind_are_read_or_left_out(tmp_path):
    path = tmp_path / "times.csv"
    path.write_text(
        "\ufeffrank,step,seconds,start,operation\n²,1,1e308,0,a\n²,2,1,1,a\n①,2,1,-1e300,a\n٣,2,1,1,a\n²,3,1,1,b\n"
    )
    table = read_table(path)
    assert sorted(rank.name for rank in table.ledger.ranks) == ["²", "٣"]
    assert table.lost == 2


@pytest.mark.parametrize("odd", ["1_000", "\uff11\uff12", "\u0661\u0662", "0x10"])
@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_what_only_python_reads_as_a_number_is_none(suffix, odd, tmp_path):
    path = tmp_path / f"times.{suffix}"
    rows = [(at, odd if at == 3 else "1.5") for at in range(20)]
    if suffix == "csv":
        path.write_text("step,seconds\n" + "".join(f"{step},{seconds}\n" for step, seconds in rows))
    else:
        path.write_text("".join(json.dumps({"step": step, "seconds": seconds}) + "\n" for step, seconds in rows))
    table = read_table(path)
    assert (table.rows, table.lost) == (19, 1)


def test_the_different_names_of_a_table_are_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "MAX_NAMES", 10)
    path = tmp_path / "times.csv"
    path.write_text("rank,step,seconds\n" + "".join(f"{at},1,1\n" for at in range(11)))
    with pytest.raises(SourceError, match="column rank has more than 10 different values"):
        read_table(path)


def test_moments_belong_to_the_last_interval_that_covers_them():
    rng = np.random.default_rng(5)
    begins = rng.integers(0, 40, 60)
    places = np.stack([begins, np.minimum(begins + rng.integers(0, 12, 60), 50)])
    keys = rng.integers(0, 9, 60)
    expected = np.full(50, -1)
    for (begin, end), key in zip(places.T, keys, strict=True):
        expected[begin:end] = key
    owner = np.full(50, -1)
    tables._paint(owner, places, keys)
    assert owner.tolist() == expected.tolist()


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([f"{rank},{step},{1 - rank}" for step in range(40) for rank in (0, 1)], id="a rank without time"),
        pytest.param([f"{rank},{step},0" for step in range(40) for rank in (0, 1)], id="no time at all"),
        pytest.param([f"{rank},{step},1e12" for step in range(40) for rank in (0, 1)], id="very long steps"),
    ],
)
@pytest.mark.parametrize("operation", ["", ",forward"])
def test_times_without_a_length_are_judged(tmp_path, rows, operation):
    path = tmp_path / "times.csv"
    path.write_text(
        f"rank,step,seconds{',operation' * bool(operation)}\n" + "".join(f"{row}{operation}\n" for row in rows)
    )
    report = report_table(path)
    assert report.verdict.main.kind.name in {"BALANCED", "STRAGGLER"}


def test_one_rank_that_does_nothing_but_communicate(tmp_path):
    rows = [f"0,{step},1,forward\n0,{step},0.1,all-reduce\n1,{step},0.1,all-reduce\n" for step in range(40)]
    path = tmp_path / "times.csv"
    path.write_text("rank,step,seconds,operation\n" + "".join(rows))
    assert report_table(path).verdict.main.kind.name == "STRAGGLER"


@pytest.mark.parametrize("start", ["", ",start"])
def test_operations_that_each_occur_once_take_no_memory(tmp_path, start):
    path = tmp_path / "times.csv"
    rows = (f"{step},1,op{step}{f',{step}' * bool(start)}\n" for step in range(20_000))
    path.write_text(f"step,seconds,operation{start}\n" + "".join(rows))
    assert peak_mib(path) < 300
    assert tables.OTHERS in read_table(path).ledger.totals.activities


@pytest.mark.filterwarnings("error")
def test_facts_whose_sum_is_no_number_warn_of_nothing(tmp_path):
    rows = [f"{step},0.1,{rank},-1e308" for step in range(20) for rank in range(2)]
    (path := tmp_path / "facts.csv").write_text("\n".join(["step,seconds,rank,tokens", *rows]))
    read_table(path)


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("rows", ["one", "some", "all"])
def test_fields_of_any_json_type_are_no_error_of_the_program(tmp_path, timed, rows):
    """A list as the rank was an error of Python."""
    row = {"step": 0, "rank": 0, "stage": 0, "operation": "forward", "seconds": 0.1, "loss": 1.0}
    if timed:
        row["start"] = row.pop("seconds")
        row["end"] = 0.2
    values = (
        None, True, -1, 0, 1.5, 1e308, -1e308, 5e-324, 2**70, 10**400, "", "x", "1", "nan", [], [1], [[]], {}, {"a": 1},
    )  # fmt: skip
    path, period = tmp_path / "times.jsonl", {"one": 60, "some": 5, "all": 1}[rows]
    for key in row:
        for value in values:
            table = [
                {
                    **row,
                    "step": step,
                    "rank": rank,
                    **({"start": step + 0.1 * rank, "end": step + 0.5} if timed else {}),
                }
                | ({key: value} if not (2 * step + rank) % period else {})
                for step in range(30)
                for rank in range(2)
            ]
            path.write_text("\n".join(json.dumps(one) for one in table))
            try:
                report_table(path)
            except SourceError as error:
                assert "\n" not in str(error)


def test_rows_whose_rank_is_a_list_are_counted(tmp_path):
    path = tmp_path / "times.jsonl"
    path.write_text(
        "\n".join(f'{{"step": {step}, "seconds": 0.1, "rank": {[0] if step == 3 else 0}}}' for step in range(30))
    )
    table = read_table(path)
    assert (table.rows, table.lost, table.why) == (29, 1, "a name is a list or an object")


@pytest.mark.parametrize("other", ["5e-324", "1e-310", "0"])
def test_steps_of_hardly_any_time_warn_of_nothing(tmp_path, other):
    rows = [f"{step},{rank},{1000 if step == 7 else other}" for step in range(40) for rank in range(3)]
    (path := tmp_path / "times.csv").write_text("\n".join(["step,rank,seconds", *rows]))
    report_table(path)


def test_the_tables_of_a_folder_are_limited_together(tmp_path, monkeypatch):
    for rank in range(3):
        (tmp_path / f"rank_{rank}.csv").write_text("step,seconds\n" + "1,2\n" * 100)
    monkeypatch.setattr("sm_profiler.diagnosis.table.reading.MAX_BYTES", 1000)
    with pytest.raises(SourceError, match="its tables have more than"):
        read_table(tmp_path)


@pytest.mark.parametrize("kind", ["pipe", "folder", "device"])
def test_a_folder_with_anything_but_files_is_no_table(kind, tmp_path):
    (tmp_path / "rank_0.csv").write_text("step,seconds\n1,2\n")
    other = tmp_path / "rank_1.csv"
    {"pipe": os.mkfifo, "folder": os.mkdir, "device": lambda path: path.symlink_to("/dev/zero")}[kind](other)
    assert not is_table(str(tmp_path))


def test_columns_of_a_stranger_are_printable_in_the_report(tmp_path):
    head = "step,seconds,\x1b[31mloss,<b>" + "x" * 200 + "".join(f",c{at}" for at in range(30))
    rows = "".join(f"{at},1" + ",5" * 32 + "\n" for at in range(20))
    (tmp_path / "t.csv").write_text(f"{head}\n{rows}")
    (told,) = [
        one.value for one in diagnose(read_table(tmp_path / "t.csv").ledger).main.evidence if one.metric == "columns"
    ]
    assert told.startswith(r"step, seconds; as evidence only: \x1b[31mloss, <b>xxx")
    assert told.endswith("20 more")
    assert len(told) < 500
