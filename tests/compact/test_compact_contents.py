"""The list of files beside the Parquet files: the same files without a look at the footers, and only while it is theirs."""

import json
import os

import msgspec
import pytest

from sm_profiler.compact import compact
from sm_profiler.report import build_report
from sm_profiler.report.report_json import to_json
from sm_profiler.source import open_source
from sm_profiler.source.parquet import contents
from sm_profiler.source.parquet.contents import PartFile
from sm_profiler.storage import LocalStorage

LIST = "states/job=j/files.state"


@pytest.fixture
def dataset(damaged, tmp_path):
    """A job with damaged, stray and oddly named files in Parquet."""
    compact(open_source(damaged), LocalStorage(tmp_path / "out"), job="j")
    return tmp_path / "out"


@pytest.fixture
def opened(monkeypatch):
    """The Parquet files whose footers are read."""
    found = []
    original = PartFile.open.__func__
    monkeypatch.setattr(
        PartFile,
        "open",
        classmethod(lambda cls, storage, part, info: found.append(info.key) or original(cls, storage, part, info)),
    )
    return found


def description(where):
    source = open_source(where)
    found = (
        list(source.files),
        source.beside,
        source.strays,
        source.finished,
        source.origin,
        list(source.storage.list()),
    )
    return *found, source.first_timestamp_us, source.last_timestamp_us


def text(where):
    found = json.loads(to_json(build_report(open_source(where))))
    del found["generated"]
    return json.dumps(found)


def test_files_are_listed_without_footers_and_rows_read_with_those_they_need(damaged, dataset, opened):
    found = description(dataset)
    assert not opened
    source = open_source(dataset)
    latest = max(info.key for info in found[5])
    assert list(source.storage.list("", latest)) == []
    assert list(source.storage.list("system/")) == [info for info in found[5] if info.key.startswith("system/")]
    assert not opened
    assert text(dataset) == text(damaged)
    assert opened
    assert len(opened) == len({*opened})
    assert len(source.system()), len(source.events()) == (
        len(open_source(damaged).system()),
        len(open_source(damaged).events()),
    )
    (dataset / LIST).unlink()
    assert description(dataset) == found


def test_a_list_of_other_parquet_files_is_not_used(dataset, opened):
    found = description(dataset)
    file = next((dataset / "system").rglob("*.parquet"))
    data = file.read_bytes()
    file.unlink()
    (dataset / "another").write_bytes(b"")  # so that the file does not get the same number again
    file.write_bytes(data)
    assert description(dataset) == found
    assert opened


def hostile(stored):
    """Yield lists that were not written by us."""
    yield b""
    yield msgspec.msgpack.encode(stored | {"versions": [contents.VERSION + 1, 1]})
    yield msgspec.msgpack.encode(stored | {"packed": stored["packed"][:-20]})
    body = msgspec.msgpack.decode(contents.zlib.decompress(stored["packed"]))
    items = body["items"]
    first, *others = items["columns"]
    for changed in (
        {"streams": []}, {"folders": items["folders"][:-1]}, {"kinds": ["<i8"]}, {"kinds": ["O", *items["kinds"][1:]]},
        {"columns": [first[:-8], *others]}, {"columns": [first[:-3], *others]}, {"columns": []},
        {"columns": [first, *others[:-1], b"\xff" * len(others[-1])]},
        {"columns": [first, *others[:2], b"\xff" * len(others[2]), *others[3:]]},
    ):  # fmt: skip
        packed = contents.zlib.compress(msgspec.msgpack.encode(body | {"items": items | changed}))
        yield msgspec.msgpack.encode(stored | {"packed": packed})


def test_a_list_that_is_damaged_or_hostile_changes_nothing(dataset, opened):
    found = description(dataset)
    stored = msgspec.msgpack.decode((dataset / LIST).read_bytes())
    for data in hostile(stored):
        opened.clear()
        (dataset / LIST).write_bytes(data)
        assert description(dataset) == found
        assert opened


def test_a_file_that_turns_out_to_be_damaged_is_counted(dataset):
    file = max((dataset / "events").rglob("*.parquet"))
    before = file.stat()
    with file.open("r+b") as handle:
        handle.seek(-200, os.SEEK_END)
        handle.write(bytes(150))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    source = open_source(dataset)
    lost = {item.info.key for item in source.files if not item.is_system}
    build_report(source)
    refused = {one.path for one in source.quality() if one.status == "refused"}
    assert file.relative_to(dataset).as_posix() in refused
    assert lost & refused
