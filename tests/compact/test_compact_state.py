"""The state of the folds in this user's cache: the same report without reading rows, and only while nothing has changed."""

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

import sm_profiler
from sm_profiler.cli.main import main
from sm_profiler.compact import compact
from sm_profiler.errors import SourceError
from sm_profiler.metrics.scaling import codec, kept
from sm_profiler.report import build_report
from sm_profiler.report.report_json import to_json
from sm_profiler.source import open_source
from sm_profiler.source.parquet import schema
from sm_profiler.source.parquet.contents import PartFile
from sm_profiler.storage import LocalStorage


@pytest.fixture
def job(damaged):
    return damaged


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """The cache of this user."""
    monkeypatch.setenv("SM_PROFILER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def dataset(job, tmp_path, cache):
    """That job in Parquet, of which a report has been made."""
    compact(open_source(job), LocalStorage(tmp_path / "out"), job="j")
    build_report(open_source(tmp_path / "out"))
    return tmp_path / "out"


@pytest.fixture
def state(dataset, cache):
    """The file of its state."""
    (found,) = (cache / "sm-profiler-states").glob("*.state")
    return found


@pytest.fixture
def read(monkeypatch):
    """The row groups that are read from Parquet."""
    groups = []
    columns = PartFile.columns
    monkeypatch.setattr(PartFile, "columns", lambda file, group: groups.append(group) or columns(file, group))
    return groups


def test_a_state_depends_on_all_code_that_folds():
    root = Path(sm_profiler.__file__).parent
    files = {file.relative_to(root).as_posix() for file in kept.code_files(root)}
    assert {"folding.py", "metrics/step_fold.py", "rules/base.py", "formats/columns.py", "source/parse.py"} <= files


def text(where, **options):
    found = json.loads(to_json(build_report(open_source(where), **options)))
    del found["generated"]
    return json.dumps(found)


def test_nothing_is_kept_beside_the_data_and_nothing_is_read_there(job, dataset, state, read):
    beside = dataset / "states/job=j/report.state"
    assert not beside.exists()
    state.rename(beside)
    assert text(dataset) == text(job)
    assert read
    assert state.exists()  # again


def test_a_state_that_another_user_may_have_written_is_not_read(job, dataset, state, read):
    state.chmod(0o666)
    assert text(dataset) == text(job)
    assert read
    state.unlink()
    state.symlink_to(dataset / "another")
    read.clear()
    assert text(dataset) == text(job)
    assert read


def test_without_a_cache_rows_are_read(job, dataset, read, monkeypatch):
    monkeypatch.setenv("SM_PROFILER_CACHE", "off")
    assert text(dataset) == text(job)
    assert read


def test_report_from_the_state_reads_no_rows(job, dataset, read):
    source = open_source(dataset)
    found = json.loads(to_json(build_report(source)))
    del found["generated"]
    assert not read
    assert json.dumps(found) == text(job)
    assert text(dataset, executor="local:2") == text(job)
    whole = open_source(job)
    build_report(whole)
    assert source.quality() == whole.quality()
    assert any(one.status == "refused" for one in source.quality())
    assert source.metadata() == whole.metadata()
    assert not list(source.batches())
    with pytest.raises(SourceError):
        build_report(open_source(dataset, strict=True))
    assert not read


@pytest.mark.parametrize("what", ["parameters", "service", "code", "rows", "strays"])
def test_rows_are_read_if_the_state_is_of_something_else(job, dataset, state, read, monkeypatch, what):  # fixtures
    options = {}
    if what == "parameters":
        options["parameters"] = {"CPUBottleneck_cpu_threshold": 50}
    if what == "service":
        options["compat"] = "service"
    if what == "code":
        monkeypatch.setattr(kept, "code_digest", lambda: "another")
    if what == "rows":
        file = next((dataset / "system").rglob("*.parquet"))
        data = file.read_bytes()
        file.unlink()
        file.write_bytes(data)
    if what == "strays":
        stored = msgspec.msgpack.decode(state.read_bytes())
        assert stored["strays"]
        state.write_bytes(msgspec.msgpack.encode(stored | {"strays": []}))
    expected = text(job, **options)
    assert text(dataset, **options) == expected
    assert read


def hostile(state):
    """Yield states that were not written by us."""
    yield b""
    yield b"nothing"
    for packed in (b"", b"x", state["packed"][:-9], state["packed"][:50]):
        yield msgspec.msgpack.encode(state | {"packed": packed})
    body = msgspec.msgpack.decode(kept.zlib.decompress(state["packed"]))
    inner = kept.zlib.decompress(body["state"])
    rules, *others = codec.decode(inner)
    folds = others[3]
    for changed in (
        inner[:-9],
        codec.encode([{}, *others]),
        codec.encode([{name: dict.fromkeys(state, 7) for name, state in rules.items()}, *others]),
        codec.encode([rules, *others[:3], [dict.fromkeys(fold, 7) for fold in folds], others[4]]),
    ):
        packed = kept.zlib.compress(msgspec.msgpack.encode(body | {"state": kept.zlib.compress(changed)}))
        yield msgspec.msgpack.encode(state | {"packed": packed})


def test_a_state_that_is_damaged_or_hostile_changes_nothing(job, dataset, state):
    expected = text(job)
    stored = msgspec.msgpack.decode(state.read_bytes())
    for data in hostile(stored):
        state.write_bytes(data)
        assert text(dataset) == expected


def test_a_job_that_may_go_on_has_no_state(two_nodes, tmp_path, cache, monkeypatch):
    job = shutil.copytree(two_nodes, tmp_path / "job", ignore=shutil.ignore_patterns("*.ts"))
    last_us = open_source(job).last_timestamp_us
    compact(open_source(job), LocalStorage(tmp_path / "out"), job="j")
    for later_s, is_kept in ((60, False), (4000, True)):
        monkeypatch.setattr(kept.time, "time", lambda: last_us / 1e6 + later_s)  # noqa: B023 - called in this round
        build_report(open_source(tmp_path / "out"))
        assert bool(list(cache.rglob("*.state"))) == is_kept


def test_a_newer_version_renews_a_state(job, dataset, state, read, tmp_path, monkeypatch):  # fixtures
    before = state.read_bytes()
    assert text(dataset) == text(job)
    assert state.read_bytes() == before
    assert not read
    monkeypatch.setattr(kept, "code_digest", lambda: "a newer one")
    assert text(dataset) == text(job)
    assert read
    read.clear()
    assert text(dataset) == text(job)
    assert not read
    shutil.rmtree(dataset / "states")
    assert main(["compact", f"{dataset}/job=j", "--out", str(dataset)]) == 0
    assert (dataset / "states/job=j/files.state").exists()
    with pytest.raises(SourceError, match="is in Parquet already"):
        compact(open_source(dataset), LocalStorage(tmp_path / "another"), job="j")


def test_two_threads_that_read_leave_the_process_its_memory_pool(dataset, monkeypatch):
    """The first that begins ends first, while the second still reads."""
    before, pools = pa.default_memory_pool().backend_name, []
    inside, both, numbers, original = threading.Event(), threading.Event(), iter(range(10**6)), schema.from_batch

    def from_batch(*args):
        number = next(numbers)
        pools.append(pa.default_memory_pool().backend_name)
        if number == 0:
            inside.set()
            both.wait(60)
        elif number == 1:
            both.set()
            first.result(60)
        return original(*args)

    def read():
        return len(open_source(dataset, processes=1).system())

    monkeypatch.setattr(schema, "from_batch", from_batch)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(read)
        assert inside.wait(60)
        assert pool.submit(read).result(60) == first.result() > 0
    assert set(pools) == {"system"}
    assert pa.default_memory_pool().backend_name == before != "system"
