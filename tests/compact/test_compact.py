"""Profiles as Parquet: the same reports, a tenth of the bytes, readable by other engines."""

import contextlib
import json
import shutil

import duckdb
import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sm_profiler.analysis import PandasFrame
from sm_profiler.cli.main import main
from sm_profiler.compact import athena_ddl, compact
from sm_profiler.errors import SourceError
from sm_profiler.formats.columns import Category
from sm_profiler.report import build_report
from sm_profiler.report.compare import compare
from sm_profiler.report.report_json import to_json
from sm_profiler.report.write import export_timeline
from sm_profiler.source import open_source
from sm_profiler.source.parquet.paths import PartKey, split_job
from sm_profiler.source.parquet.schema import SCHEMAS
from sm_profiler.storage import LocalStorage, open_storage
from tests.support.jobs import shared_job
from tests.tools.make_job import SCENARIOS

QUICK = ("healthy", "dataloader-slow", "cpu-only", "no-framework", "step-outliers")
SMALL = ("--minutes", "2", "--gpus", "2", "--cpus", "4")


def compacted(source, out, job="job"):
    return compact(open_source(source), open_storage(out), job=job)


def report_text(source, **options):
    found = json.loads(to_json(build_report(open_source(source), **options)))
    del found["generated"]
    return json.dumps(found)


def rows_of(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*.parquet"))}


def assert_same_rows(one, other):
    for field in one.__attrs_attrs__:
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, Category):
            a, b = a.decode(), b.decode()
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b, err_msg=field.name)


@pytest.mark.parametrize(
    "scenario", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in SCENARIOS]
)
def test_report_from_parquet_equals_the_one_from_json(tmp_path, scenario):
    job = shared_job(*SMALL, "--scenario", scenario)
    compacted(job, tmp_path)
    for options in ({}, {"compat": "service"}):
        assert report_text(tmp_path, **options) == report_text(job, **options)
    shutil.rmtree(tmp_path / "states")
    assert report_text(tmp_path) == report_text(job)


def test_rows_metadata_and_quality_survive_damage_and_events_across_files(damaged, tmp_path):
    compacted(damaged, tmp_path / "out")
    one, other = open_source(damaged), open_source(tmp_path / "out")
    assert_same_rows(one.system(), other.system())
    assert_same_rows(one.events(), other.events())
    assert one.quality() == other.quality()
    assert any(each.status == "refused" for each in other.quality())
    assert one.metadata() == other.metadata()
    assert one.finished == other.finished
    assert report_text(damaged) == report_text(tmp_path / "out")


def test_batches_hold_the_same_rows(two_nodes, tmp_path):
    compacted(two_nodes, tmp_path)
    pairs = zip(open_source(two_nodes).batches(), open_source(tmp_path).batches(), strict=True)
    for one, other in pairs:
        assert one.minute_us == other.minute_us
        assert_same_rows(one.system, other.system)
        assert_same_rows(one.events, other.events)


def test_takes_at_most_a_tenth_of_the_bytes(tmp_path):
    done = compacted(shared_job("--minutes", "5", "--gpus", "4", "--cpus", "16"), tmp_path)
    assert done.written_bytes * 10 <= done.read_bytes
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.*")) == done.written_bytes


def test_second_time_reads_only_what_is_new(two_nodes, tmp_path):
    job, out, whole = tmp_path / "profiler-output", tmp_path / "out", tmp_path / "whole"
    compacted(two_nodes, whole)
    every = sorted(path for path in two_nodes.rglob("*.json"))
    for number, path in enumerate(every):
        if number % 3:
            target = job / path.relative_to(two_nodes)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target)
    first = compacted(job, out)
    before = rows_of(out)
    again = compacted(job, out)
    assert (again.files, again.parts, again.unchanged) == (0, 0, first.files)
    assert rows_of(out) == before
    for path in [*every, *two_nodes.rglob("*.ts")]:
        target = job / path.relative_to(two_nodes)
        if not target.exists():
            shutil.copy2(path, target)
    last = compacted(job, out)
    assert last.files == len(every) - first.files
    assert report_text(out) == report_text(job)


def test_changed_file_replaces_its_rows(two_nodes, tmp_path):
    job = shutil.copytree(two_nodes, tmp_path / "profiler-output")
    compacted(job, tmp_path / "out")
    file = sorted((job / "system").rglob("*.json"))[1]
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:50]))
    assert compacted(job, tmp_path / "out").files == 1
    assert report_text(tmp_path / "out") == report_text(job)


def test_keeps_what_has_left_the_profile(two_nodes, tmp_path):
    job = shutil.copytree(two_nodes, tmp_path / "profiler-output")
    compacted(job, tmp_path / "out")
    expected = report_text(job)
    for file in sorted(job.rglob("*.json"))[::2]:
        file.unlink()
    compacted(job, tmp_path / "out")
    assert report_text(tmp_path / "out") == expected


def test_several_jobs_in_one_dataset(two_nodes, tmp_path):
    compacted(two_nodes, tmp_path, "one")
    compacted(shared_job(*SMALL, "--scenario", "healthy"), tmp_path, "another/with a slash")
    with pytest.raises(SourceError, match="contains 2 jobs: name one, as in"):
        open_source(tmp_path)
    assert report_text(f"{tmp_path}/job=one") == report_text(two_nodes)
    assert open_source(f"{tmp_path}/job=another%2Fwith a slash").system()
    with pytest.raises(SourceError):
        open_source(f"{tmp_path}/job=neither")


def test_names_are_taken_as_they_are_and_escaped(two_nodes, tmp_path):
    for name in ("50%25", "a/b"):
        compacted(two_nodes, tmp_path, name)
    with pytest.raises(SourceError, match=r"as in .*/job=50%2525 ") as error:
        open_source(tmp_path)
    shown = str(error.value).partition("as in ")[2].partition(" ")[0]
    expected = report_text(two_nodes)
    for place in (shown, f"{tmp_path}/job=50%25", f"{tmp_path}/job=50%2525/", f"{tmp_path}/job=a%2Fb"):
        assert report_text(place) == expected


def test_a_foreign_file_whose_name_is_too_long_for_a_folder_keeps_no_other_from_being_written(two_nodes, tmp_path):
    job = shutil.copytree(two_nodes, tmp_path / "profiler-output")
    file = min((job / "framework").rglob("*pythontimeline.json"))
    end, _, kind = file.name.split("_", 2)
    for node in ("\u00e9" * 60, "\u00e9" * 61):
        shutil.copy(file, file.with_name(f"{end}_{node}_{kind}"))
    compacted(job, tmp_path / "out")
    one, other = open_source(job), open_source(tmp_path / "out")
    assert_same_rows(one.events(), other.events())
    assert one.quality() == other.quality()


def test_another_job_of_the_same_name_is_refused(two_nodes, tmp_path):
    out = tmp_path / "out"
    compacted(two_nodes, out)
    other = shared_job(*SMALL, "--scenario", "healthy", "--seed", "5")
    with pytest.raises(SourceError, match=r"holds another job, of .*--job"):
        compacted(other, out)
    assert report_text(out) == report_text(two_nodes)
    moved = shutil.copytree(two_nodes, tmp_path / "moved")
    grown = max(moved.rglob("*.algo-1.json"))
    grown.write_bytes(b"".join(grown.read_bytes().splitlines(keepends=True)[:-5]))
    assert compacted(moved, out).files  # a profile that was copied, and then changed
    assert report_text(out) == report_text(moved)


@pytest.mark.parametrize("where", ["footer", "pages", "empty"])
def test_damaged_parquet_is_counted(two_nodes, tmp_path, where):
    compacted(two_nodes, tmp_path)
    file = next((tmp_path / "system").rglob("*.parquet"))
    data = bytearray(file.read_bytes())
    spots = {"footer": range(len(data) - 400, len(data) - 100), "pages": range(200, 2000), "empty": ()}[where]
    for spot in spots:
        data[spot] ^= 0xFF
    file.write_bytes(b"" if where == "empty" else data)
    source = open_source(tmp_path)
    build_report(source)
    assert [each for each in source.quality() if each.status == "refused" and file.name in each.path + each.reason]
    with (
        pytest.raises(SourceError, match="delete it, and compact again")
        if where != "pages"
        else contextlib.nullcontext()
    ):
        compacted(two_nodes, tmp_path)


@given(st.integers(0, 10**6), st.integers(1, 40), st.booleans())
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damage_is_noticed(tmp_path, seed, count, cut):
    job = shared_job(*SMALL, "--scenario", "healthy")
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    compacted(job, tmp_path / "out")
    draw = np.random.default_rng(seed)
    file = draw.choice([path for path in rows_of(tmp_path / "out") if path.parts[-5] in {"system", "events"}])
    data = np.frombuffer(file.read_bytes(), np.uint8).copy()
    data[draw.integers(0, len(data), count)] ^= draw.integers(1, 255, count, np.uint8)
    file.write_bytes(data[: draw.integers(0, len(data))] if cut else data)
    source, whole = open_source(tmp_path / "out"), open_source(job)
    system, events = source.system(), source.events()
    if all(each.status != "refused" for each in source.quality()):  # bytes that nothing depends on
        assert_same_rows(system, whole.system())
        assert_same_rows(events, whole.events())


def test_newer_schema_is_refused_in_one_line(two_nodes, tmp_path, monkeypatch):
    for module in ("compact", "source.parquet.contents", "source.parquet.schema"):
        monkeypatch.setattr(f"sm_profiler.{module}.SCHEMA_VERSION", 2)
    compacted(two_nodes, tmp_path)
    monkeypatch.undo()
    with pytest.raises(SourceError, match="written with version 2 of the schema, which is newer") as error:
        open_source(tmp_path)
    assert "\n" not in str(error.value)


def test_a_foreign_parquet_file_is_no_profile(tmp_path):
    folder = tmp_path / "files" / "job=x"
    folder.mkdir(parents=True)
    pl.DataFrame({"a": [1]}).write_parquet(folder / "data.parquet")
    with pytest.raises(SourceError, match=r"does not contain a profile|not written by sm-profiler"):
        build_report(open_source(tmp_path))


def test_a_column_that_is_missing_is_named(two_nodes, tmp_path):
    compacted(two_nodes, tmp_path)
    file = next((tmp_path / "events").rglob("*.parquet"))
    pl.read_parquet(file).drop("phase").write_parquet(file)
    with pytest.raises(SourceError, match=r"damaged: it has no column phase; delete it, and compact again"):
        compacted(two_nodes, tmp_path)


def table(root, name):
    return duckdb.read_parquet(f"{root}/{name}/**/*.parquet", hive_partitioning=True)


def test_duckdb_reads_the_tables(two_nodes, tmp_path):
    compacted(two_nodes, tmp_path)
    source = open_source(two_nodes)
    events, system = source.events(), source.system()
    count, spent = table(tmp_path, "events").aggregate("count(*), sum(duration_us)").fetchall()[0]
    assert count == len(events)
    assert spent == pytest.approx(float(events.duration_us.sum()))
    nodes = table(tmp_path, "system").aggregate("node, count(*)", "node").order("node").fetchall()
    assert nodes == [(name, int(system.node.mask(name).sum())) for name in ("algo-1", "algo-2")]
    steps = (
        table(tmp_path, "steps").filter("mode = 'TRAIN'").aggregate("mode, count(*), median(forward_us)").fetchall()[0]
    )
    assert steps[:2] == ("TRAIN", int(events.name.mask("Step:ModeKeys.TRAIN").sum()))
    assert steps[2] > 0


def test_polars_reads_the_tables(two_nodes, tmp_path):
    compacted(two_nodes, tmp_path)
    events = open_source(two_nodes).events()
    frame = pl.scan_parquet(f"{tmp_path}/events/", hive_partitioning=True)
    found = frame.filter(pl.col("phase") == "Forward").select(pl.len(), pl.col("duration_us").sum()).collect()
    assert found.row(0) == (
        int(events.phase.mask("Forward").sum()),
        pytest.approx(float(events.duration_us[events.phase.mask("Forward")].sum())),
    )
    assert set(frame.select("hour").unique().collect().to_series()) == {2023111422, 2023111423}


def test_sampled_stacks_are_a_table(two_nodes, tmp_path):
    job = shutil.copytree(two_nodes, tmp_path / "profiler-output")
    args = {"frames": [["train.py", 7, "load"], ["train.py", 9, "main"]], "lines": ["x", "y"],
            "stacks": [["forward", 0, 250.0, 5, "relu", [1, 0]]]}  # fmt: skip
    event = {"name": "s", "ph": "X", "pid": 1, "ts": 10, "dur": 5, "args": args}
    meta = [
        {"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": 1700002760000000}},
        {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "sm_profiler/samples"}},
    ]
    target = job / "framework/pevents/2023111422/1700002770000000_0-algo-1_pythontimeline.json"
    target.write_text(json.dumps([*meta, event]))
    compacted(job, tmp_path / "out")
    row = table(tmp_path / "out", "samples").project("process, phase, stack, library, seconds, samples").fetchall()[0]
    assert row == ("algo-1-0", "forward", "main (train.py:9);load (train.py:7)", "relu", 0.25, 5)
    assert report_text(tmp_path / "out") == report_text(job)


def test_notebook_api_comparison_and_timeline_read_parquet(two_nodes, tmp_path):
    compacted(two_nodes, tmp_path / "ds")
    one, other = PandasFrame(str(two_nodes)), PandasFrame(str(tmp_path / "ds"))
    assert one.get_all_system_metrics().equals(other.get_all_system_metrics())
    assert one.get_all_framework_metrics().equals(other.get_all_framework_metrics())
    reports = [build_report(open_source(where)) for where in (two_nodes, tmp_path / "ds")]
    assert not any(change.is_clear for change in compare(*reports).changes)
    for name, where in (("a.json", two_nodes), ("b.json", tmp_path / "ds")):
        export_timeline(open_source(where), str(tmp_path / name))
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_s3_to_s3_and_back(two_nodes, tmp_path, bucket, capsys):
    for file in two_nodes.rglob("*.*"):
        if file.is_file():
            bucket.upload_file(str(file), "profiles-here", f"job-7/profiler-output/{file.relative_to(two_nodes)}")
    assert (
        main(["compact", "s3://profiles-here/job-7/profiler-output", "--out", "s3://profiles-here/profiles", "--ddl"])
        == 0
    )
    shown = capsys.readouterr()
    assert "LOCATION 's3://profiles-here/profiles/events/'" in shown.out
    assert "job-7: " in shown.err
    assert report_text("s3://profiles-here/profiles") == report_text("s3://profiles-here/job-7/profiler-output")
    assert main(["compact", "s3://profiles-here/job-7", "--out", "s3://profiles-here/profiles"]) == 0
    assert "0 new files" in capsys.readouterr().err
    assert main(["report", "s3://profiles-here/profiles/job=job-7", "--out", str(tmp_path / "r")]) == 0
    assert main(["compare", "s3://profiles-here/profiles", str(two_nodes)]) == 0
    assert main(["merge-timeline", "s3://profiles-here/profiles", "--out", str(tmp_path / "trace.json")]) == 0


def test_ddl_names_every_column_and_partition():
    ddl = athena_ddl("s3://profiles-here/profiles/")
    for table, schema in SCHEMAS.items():
        statement = ddl.partition(f"EXISTS sm_profiler.{table} (")[2].partition(";")[0]
        assert [line.split("`")[1] for line in statement.splitlines() if "`" in line] == schema.names
        assert f"LOCATION 's3://profiles-here/profiles/{table}/'" in statement
        assert "job string" in statement
    assert r"LOCATION 's3://profiles-here/anne\'s/steps/'" in athena_ddl("s3://profiles-here/anne's")


@pytest.mark.parametrize("job", ["a", "a/b", "..", "käse 1", "x=y", "."])
def test_part_names_survive(job):
    for part in (PartKey("events", job, "algo-1", "2023111422"), PartKey("files", job)):
        assert PartKey.parse(part.key) == part
        assert ".." not in part.key.split("/")
    assert split_job(f"s3://profiles-here/p/job={job.replace('/', '%2F')}") == ("s3://profiles-here/p", job)


def test_python_statistics_come_back(tmp_path):
    job = shutil.copytree(shared_job(*SMALL, "--scenario", "healthy"), tmp_path / "profiler-output")
    key = "framework/pytorch/cprofile/0-algo-1/prestepzero-*-start-1700000000000000_train-3-stepend-1700000009000000/python_stats"
    (job / key).parent.mkdir(parents=True)
    (job / key).write_bytes(b"stats")
    compacted(job, tmp_path / "out")
    source = open_source(tmp_path / "out")
    assert [info.key for info in source.other_files] == [key]
    assert source.storage.read(key) == b"stats"
    assert LocalStorage(job).read(key) == b"stats"


def test_reading_by_the_minute_forgets_the_files_of_earlier_hours(two_nodes, tmp_path):
    compact(open_source(two_nodes), LocalStorage(tmp_path), job="j")
    source = open_source(tmp_path)
    hours = [{opened.hour for opened in source.storage._open_parts.values()} for _ in source.batches()]
    assert hours[0] != hours[-1]
    assert max(map(len, hours)) == 1
