"""Parquet files of strangers that would take a hundred times their size in memory or more."""

import subprocess
import sys
import zlib
from base64 import b64encode

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sm_profiler.compact import TableWriter
from sm_profiler.formats.bounds import unpacked_size
from sm_profiler.formats.columns import EventColumns
from sm_profiler.source import open_source
from sm_profiler.source.parquet import contents, paths, schema
from sm_profiler.source.parquet.contents import Contents
from sm_profiler.source.parquet.schema import Header, SourceFile
from tests.support.memory import peak_of

AT_S = 1_700_002_800
KEY = f"system/incremental/2023111423/{AT_S}.algo-1.json"
PART = paths.PartKey(paths.SYSTEM, "j", "algo-1", "2023111423")
MB = 1 << 20


def write(folder, packed, rows, *, text="cpu0", plain=False, last=0.0, statistics=False):
    """Write a data set of one file, with so many equal rows in a row group."""
    count = pa.array(np.r_[np.zeros(rows - 1), last])
    texts = [pa.array([text]).take(pa.array(np.zeros(rows, np.int64))) for _ in range(4)]
    table = pa.table([count, count, *texts], schema.SCHEMAS[paths.SYSTEM])
    path = folder / PART.key
    path.parent.mkdir(parents=True)
    with pq.ParquetWriter(
        path, table.schema, compression="zstd", use_dictionary=not plain, write_statistics=statistics,
        data_page_size=1 << 30, store_schema=False,
    ) as writer:  # fmt: skip
        writer.write_table(table, row_group_size=rows)
        writer.add_key_value_metadata({schema.KEY.decode(): packed.decode()})
    files = folder / paths.PartKey(paths.FILES, "j").key
    files.parent.mkdir(parents=True)
    files.write_bytes(TableWriter(paths.FILES).finish(Header(schema.SCHEMA_VERSION, "x")))
    return folder


def account(rows):
    return Header(schema.SCHEMA_VERSION, "x", [SourceFile(KEY, 1, "", 0.0, AT_S * 10**6, 0, 0, rows)])


def refused(folder):
    """Return why the rows of the one file were refused, read with little memory."""
    code = f"""
import resource
from sm_profiler.source import open_source
import pyarrow.parquet, pandas, numpy
source = open_source({str(folder)!r}, progress=False)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for batch in source.batches(unsettled=True):
    assert not len(batch.system)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
assert grown < 64 << 10, grown
print(*(one.reason for one in source.quality()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert not done.returncode, done.stderr
    return done.stdout


@pytest.mark.parametrize("options", [{"rows": 1_500_000}, {"rows": 4000, "text": "x" * 20_000, "plain": True}])
def test_a_row_group_that_unpacks_to_more_than_is_written_is_refused_unread(tmp_path, options):
    folder = write(tmp_path, schema.encode_header(account(options["rows"])), **options)
    assert (folder / PART.key).stat().st_size < 100_000
    assert "more than sm-profiler writes" in refused(folder)


def test_rows_that_are_as_many_as_is_written_are_read(tmp_path):
    folder = write(tmp_path, schema.encode_header(account(200_000)), 200_000)
    assert len(open_source(folder, progress=False).system()) == 200_000


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e308, -1.0])
def test_rows_with_a_time_that_is_none_are_refused_and_counted(tmp_path, value):
    """They were left out, and the report stated that all was read."""
    source = open_source(write(tmp_path, schema.encode_header(account(20)), 20, last=value), progress=False)
    assert not len(source.system())
    (quality,) = source.quality()
    assert (quality.status, quality.lost) == ("refused", 20)
    assert "not finite, negative or too large" in quality.reason


@pytest.mark.parametrize("column", ["start_us", "duration_us"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e308, -1.0])
def test_events_with_a_time_that_is_none_are_refused(column, value):
    batch = schema.to_batch(EventColumns.empty(), paths.EVENTS)
    filled = {
        field.name: [value if field.name == column else 1.0] if pa.types.is_floating(field.type)
        else pa.array(["x"]).dictionary_encode() if pa.types.is_dictionary(field.type) else pa.array([0], field.type)
        for field in batch.schema
    }  # fmt: skip
    with pytest.raises(ValueError, match=f"{column} has values that are not finite"):
        schema.from_batch(pa.table(filled, batch.schema), paths.EVENTS)


@pytest.mark.parametrize("mtime", [np.nan, np.inf, 1e308, -1e308])
def test_a_file_that_was_changed_at_no_time_makes_its_part_unreadable(mtime):
    """The catalog multiplied it, and numpy warned."""
    made = account(1)
    made.files[0].mtime = 0.5
    text = msgspec.json.encode(made).replace(b'"mtime":0.5', b'"mtime":%s' % repr(mtime).encode())
    with pytest.raises(ValueError, match="changed is none" if np.isfinite(mtime) else "."):
        schema.decode_header(b64encode(zlib.compress(text)))


@pytest.mark.parametrize("element", [b"{}", b"[]", b"1", b'{"":0}'])
def test_a_header_of_many_small_values_takes_little(element):
    text = msgspec.json.encode(account(1)).replace(b'"metadata":[]', b'"metadata":[' + b",".join([element] * MB) + b"]")
    bomb = b64encode(zlib.compress(text))
    allowed = b64encode(zlib.compress(text + b" " * 4 * MB, 0))

    def work():
        with pytest.raises(ValueError, match="larger than what"):
            schema.decode_header(bomb)
        assert schema.decode_header(allowed).files[0].records == ()

    assert peak_of(work) < 4 * len(allowed)


def test_records_are_read():
    records = ({"name": "x", "args": {"values": [1, 2, 3], "text": "[[[[,,,,"}}, {"name": "y"})
    made = account(1)
    made.files[0].metadata = msgspec.Raw(msgspec.json.encode(records))
    assert schema.decode_header(schema.encode_header(made)).files[0].records == records


@pytest.mark.first(1)
@pytest.mark.parametrize("element", [b"\x92\xa0\xa0", b"\x94\xa0\x00\x00\xa0"])
def test_a_list_of_files_with_many_small_values_takes_little(element):
    count = MB
    names = b"\xdd" + count.to_bytes(4, "big") + element * count
    streams, beside = (names, b"\x90") if len(element) == 3 else (b"\x90", names)
    items = b"\x84\xa7streams" + streams + b"\xa7folders\x90\xa5kinds\x90\xa7columns\x90"
    body = b"\x85\xa6origin\xa0\xa4rows\x80\xa5items" + items + b"\xa6beside" + beside + b"\xa3odd\x80"
    assert msgspec.msgpack.decode(body)
    for level in (9, 0):
        packed = zlib.compress(body, level)
        stored = msgspec.msgpack.encode(contents._Stored((contents.VERSION, schema.SCHEMA_VERSION), "d", packed))
        assert peak_of(lambda: Contents.decode(stored, "d")) < 3 * len(stored) + 4 * MB  # noqa: B023 - called at once
        assert Contents.decode(stored, "d") is None


def test_damaged_page_headers_are_refused():
    good = b"\x15\x00\x15\x08\x15\x04\x2c\x15\x02\x00\x00" + b"12"  # type, sizes, and a struct with a number of values
    assert unpacked_size(memoryview(good * 3), 1) == 12
    for bad in (
        good[:-3], good[:3], good.replace(b"\x15\x04", b"\x15\x03"), b"\x19\x00", b"\x00", b"\x1c" * 50, b"\xff" * 50,
        b"\x05" + b"\x80" * 20, good.replace(b"\x15\x02\x00", b"\x15\x04\x00"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="page"):
            unpacked_size(memoryview(bad), 1)
    assert unpacked_size(memoryview(b""), 1) == 0


def test_a_damaged_footer_ends_no_process(tmp_path):
    """Arrow calls std::terminate for a column whose statistics are damaged."""
    folder = write(tmp_path, schema.encode_header(account(50)), 50, statistics=True)
    path = folder / PART.key
    whole = path.read_bytes()
    start = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    places = [(at, 0x20) for at in range(start, len(whole) - 8) if whole[at] == 0x06]  # lengths of texts
    places += [(at, 0x08) for at in range(start, len(whole) - 8) if whole[at] == 0x0C]  # types of fields
    code = f"""
from pathlib import Path
from sm_profiler.errors import SourceError
from sm_profiler.source import open_source
path = Path({str(path)!r})
whole = path.read_bytes()
for at, mask in {places}:
    path.write_bytes(whole[:at] + bytes([whole[at] ^ mask]) + whole[at + 1 :])
    try:
        for batch in open_source({str(folder)!r}, progress=False, cache=False).batches(unsettled=True):
            len(batch.system)
    except SourceError:
        pass
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250, check=False)
    assert not done.returncode, done.stderr[-2000:]


def test_a_footer_does_not_hide_a_column_from_the_check_of_its_size(tmp_path):
    """Arrow finds columns by their order, not by the paths that a row group has for them."""
    folder = write(tmp_path, schema.encode_header(account(4000)), 4000, text="x" * 20_000, plain=True)
    path = folder / PART.key
    whole = path.read_bytes()
    for name in (b"node_id", b"type", b"name", b"dimension"):
        at = whole.rindex(name)
        whole = whole[:at] + name.upper() + whole[at + len(name) :]
    path.write_bytes(whole)
    assert "its columns are not those of its schema" in refused(folder)
