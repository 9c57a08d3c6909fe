"""Many jobs from folders: found by layout, judged once, kept in an index; strangers' files do no harm."""

import io
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sm_profiler.cli.main import main
from sm_profiler.fleet import building
from sm_profiler.fleet.building import NAME, build_fleet, write_fleet
from sm_profiler.fleet.model import Fleet, FleetJob
from sm_profiler.fleet.wording import summary
from sm_profiler.jobs.listing import find_places
from sm_profiler.report import prices
from sm_profiler.report.prices import built_in
from sm_profiler.report.write import HTML
from sm_profiler.storage import LocalStorage
from tests.support.fleets import HOUR, START_S, description, finding, report_json
from tests.support.jobs import make_job

SCHEMA = Path(__file__).parents[2] / "docs" / "fleet.schema.json"


def add_job(folder, name, report=None, described=None):
    (folder / name).mkdir(parents=True, exist_ok=True)
    if report is not None:
        (folder / name / "report.json").write_text(json.dumps(report))
    if described is not None:
        (folder / name / "job.json").write_text(json.dumps(described))


@pytest.fixture
def jobs(tmp_path):
    folder = tmp_path / "jobs"
    for n in range(4):
        tags = [{"Key": "team", "Value": "nlp" if n % 2 else "vision"}]
        report = report_json(f"job-{n}", finding("INPUT_BOUND", 900.0), loader={"num_workers": 0})
        add_job(folder, f"a/b/job-{n}", report, description(f"job-{n}", start=START_S + n * 86400, Tags=tags))
    return folder


def build(folder, index=None, **options):
    return build_fleet([str(folder)], index=LocalStorage(index) if index else None, progress=False, **options)


def unread(monkeypatch):
    """Return a list that gets the names of the jobs whose files are read."""
    read, original = [], building._loaded

    def loaded(one):
        read.append(one.name)
        return original(one)

    monkeypatch.setattr(building, "_loaded", loaded)
    return read


def test_layouts_are_found_at_any_depth(tmp_path):
    for key in (
        "x/one/profiler-output/system/incremental/2026110100/1.algo-1.json",
        "x/one/rule-output/Profiler/profiler-output/report.json",
        "two/framework/pevents/2026110100/1_0-algo-1_pythontimeline.json",
        "two/report.json",
        "reports/two/report.json",
        "deep/er/three/report.json",
        "set/files/job=four/data.parquet",
        "set/events/job=four/node=algo-1/hour=2026110100/data.parquet",
        "failed/job.json",
        "five/rule-output/A/report.json",
        "five/rule-output/B/profiler-output/report.json",
        "five/job.json",
        "six/results/report.json",
        "six/job.json",
        "else/model.bin",
    ):
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_text("{}")
    found = {place.name: place for place in find_places(LocalStorage(tmp_path)).places}
    assert sorted(found) == ["failed", "five", "four", "one", "results", "three", "two"]
    assert all(found[name].report and found[name].description for name in ("five", "results"))
    assert found["one"].report.key.startswith("x/one/rule-output")
    assert (found["one"].profile, found["two"].profile) == ("x/one/profiler-output", "two")
    assert found["two"].report is not None
    assert (found["four"].profile, found["four"].dataset, found["four"].files) == ("set", "four", 2)
    assert found["failed"].profile is found["failed"].report is None


def test_a_folder_that_links_to_itself_ends(jobs):
    (jobs / "a" / "loop").symlink_to(jobs, target_is_directory=True)
    (jobs / "out").mkdir()
    (jobs / "out" / "report.json").symlink_to("/etc/hostname")
    fleet = build(jobs)
    assert fleet.totals.jobs == 5
    assert [job.name for job in fleet.jobs if job.error] == ["out"]


def test_a_key_that_no_job_has_is_named(jobs):
    """A misspelt key made no groups, without a word."""
    (note,) = [note for note in build(jobs, group_by=("teem", "team")).notes if "grouped" in note]
    assert note.startswith("Not grouped by teem, which no job has; some have ")
    assert "team" in note.partition(";")[2]
    assert not [note for note in build(jobs).notes if "grouped" in note]  # the default keys need not be known


def test_rows_sums_and_choice(jobs):
    fleet = build(jobs, group_by=("team", "image"))
    assert fleet.totals.jobs == fleet.totals.judged == 4
    assert fleet.totals.waste == pytest.approx(0.25)
    assert {(group.key, group.value) for group in fleet.groups} == {
        ("team", "nlp"),
        ("team", "vision"),
        ("image", "1.dkr.ecr/train:7"),
    }
    assert build(jobs, tags={"team": "nlp"}).totals.jobs == 2
    assert build(jobs, tags={"image": "1.dkr.ecr/train:7"}).totals.jobs == 4  # what --group-by groups, too
    assert build(jobs, since=START_S + 1.5 * 86400).totals.jobs == 2


def test_a_job_in_several_sources_has_one_bill(jobs, tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(jobs)
    monkeypatch.chdir(tmp_path)
    copy = tmp_path / "copy"
    add_job(copy, "job-0", None, description("job-0", Tags=[]))  # the same ARN, without a report
    add_job(copy, "job-1", report_json("job-1"))  # another job of the same name
    once = build(jobs)
    many = [str(jobs), "jobs/a/../a", str(jobs / "a/b/job-2"), str(tmp_path / "link"), str(copy)]
    found = build_fleet(many, progress=False)
    assert [job.name for job in found.jobs] == [*(job.name for job in once.jobs), "job-1"]
    assert found.totals.bill_usd == pytest.approx(once.totals.bill_usd * 5 / 4)
    assert "Found in several places and counted once: 10 jobs." in found.notes


def test_jobs_are_the_same_by_their_numbers_only_if_these_differ_between_jobs():
    def count(raw, packed):
        pair = (
            FleetJob("train", source="s3://raw/train", **raw),
            FleetJob("train", source="s3://data/job=train", **packed),
        )
        return len(building._once(pair))

    numbers = {"steps": 40, "steps_per_second": 3.217, "headline": "The loop waits for data."}
    assert count(numbers, numbers) == 1
    assert count({**numbers, "arn": "arn:1"}, numbers) == 1
    assert count({**numbers, "arn": "arn:1"}, {**numbers, "arn": "arn:2"}) == 2
    assert count({**numbers, "steps_per_second": None}, {**numbers, "steps_per_second": None}) == 2


def test_jobs_with_the_same_loss_have_an_order_of_their_own(tmp_path):
    for n in range(6):
        add_job(tmp_path / "jobs", f"{n}/same", report_json("same"))
    index = tmp_path / "index"
    build(tmp_path / "jobs" / "3", index)  # from the index, and first, the next time
    assert build(tmp_path / "jobs", index).jobs == build(tmp_path / "jobs").jobs


def test_unreadable_jobs_are_listed_with_their_place(tmp_path):
    for n in range(2):
        add_job(tmp_path, f"{n}/bad", described=["no object"])
    fleet = build(tmp_path)
    assert sorted(job.source for job in fleet.jobs) == [f"{tmp_path}/{n}/bad" for n in range(2)]
    (line,) = [line for line in summary(fleet).splitlines() if "could not be read" in line]
    assert line.startswith("2 could not be read: bad: ")
    assert line.endswith("; the page lists all")


def test_the_second_run_reads_only_what_is_new(jobs, tmp_path, monkeypatch):
    read = unread(monkeypatch)
    first = build(jobs, tmp_path / "out")
    assert len(read) == 4
    read.clear()
    assert build(jobs, tmp_path / "out").jobs == first.jobs
    assert read == []
    add_job(jobs, "a/b/job-9", report_json("job-9"))
    add_job(jobs, "a/b/job-1", report_json("job-1", duration=2 * HOUR))
    (jobs / "a/b/job-0/report.json").unlink()
    (jobs / "a/b/job-0/job.json").unlink()
    assert build(jobs, tmp_path / "out").totals.jobs == 4
    assert sorted(read) == ["job-1", "job-9"]


def test_a_relative_folder_is_judged_by_workers(tmp_path, monkeypatch):
    make_job(tmp_path / "runs/slow", "--scenario", "dataloader-slow", "--minutes", "2", "--gpus", "1")
    monkeypatch.chdir(tmp_path)
    (job,) = build_fleet(["runs"], progress=False).jobs
    assert (job.name, job.error, job.verdict) == ("slow", "", "INPUT_BOUND")


def test_a_name_that_is_no_text_leaves_the_other_jobs_judged(tmp_path):
    """Of a folder, or in a job's description: one such job kept all from being judged."""
    make_job(tmp_path / "runs/slow", "--scenario", "dataloader-slow", "--minutes", "2", "--gpus", "1")
    shutil.copytree(os.fsencode(tmp_path / "runs/slow"), os.fsencode(tmp_path / "runs") + b"/bad\xffname")
    shutil.copytree(tmp_path / "runs/slow", tmp_path / "runs/described")
    named = description("described", start=START_S, Tags=[{"Key": "team\ud800", "Value": "\ud800"}])
    (tmp_path / "runs/described/job.json").write_text(json.dumps(named))
    fleet = build_fleet([str(tmp_path / "runs")], index=LocalStorage(tmp_path / "index"), progress=False)
    assert [(job.error, job.verdict) for job in fleet.jobs] == [("", "INPUT_BOUND")] * 3
    write_fleet(fleet, str(tmp_path / "out"))


def test_prices_change_without_reading_again(jobs, tmp_path, monkeypatch):
    build(jobs, tmp_path / "out")
    read = unread(monkeypatch)
    fleet = build(jobs, tmp_path / "out", prices={"ml.g5.xlarge": 10.0})
    assert (fleet.totals.bill_usd, read) == (pytest.approx(40.0), [])


def test_estimated_prices_are_in_the_notes(jobs, tmp_path, monkeypatch):
    assert not any("stimated" in note for note in build(jobs, tmp_path / "out").notes)
    monkeypatch.setattr(prices, "built_in", lambda: {**built_in(), "estimated": ["ml.g5.xlarge"]})
    fleet = build(jobs, tmp_path / "out")
    assert "Estimated, because no list price is known: the price of ml.g5.xlarge." in fleet.notes
    assert "the price of ml.g5.xlarge." in summary(fleet)


def test_flipped_bytes_of_an_index_change_no_row(jobs, tmp_path):
    first = build(jobs, tmp_path / "out").jobs
    file = tmp_path / "out" / NAME
    data = file.read_bytes()
    for place in range(0, len(data), len(data) // 8):
        file.write_bytes(data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :])
        assert build(jobs, tmp_path / "out").jobs == first


@pytest.mark.parametrize("damage", [b"", b"PAR1 nothing PAR1", None])
def test_a_damaged_index_is_made_anew(jobs, tmp_path, damage):
    build(jobs, tmp_path / "out")
    file = tmp_path / "out" / NAME
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2] if damage is None else damage)
    fleet = build(jobs, tmp_path / "out")
    assert fleet.totals.judged == 4
    assert [note for note in fleet.notes if "damaged" in note]
    assert not build(jobs, tmp_path / "out").notes


def test_an_index_of_another_version_is_made_anew(jobs, tmp_path, monkeypatch):
    build(jobs, tmp_path / "out")
    monkeypatch.setattr("sm_profiler.fleet.building.__version__", "99")
    assert "another version" in build(jobs, tmp_path / "out").notes[0]


def test_two_sources_share_an_index(jobs, tmp_path, monkeypatch):
    other = tmp_path / "other"
    add_job(other, "x", report_json("x"))
    build(jobs, tmp_path / "out")
    build(other, tmp_path / "out")
    read = unread(monkeypatch)
    assert build(jobs, tmp_path / "out").totals.jobs == 4
    assert read == []


HOSTILE = {
    "nan": '{"schema_version": "1.0", "job": {"name": "x", "start": NaN}, "verdict": {"class": "BALANCED"}}',
    "deep": "[" * 100_000,
    "types": '{"schema_version": 1, "job": [], "verdict": 7}',
    "old": '{"schema_version": "0.1", "job": {"name": "x"}, "verdict": {"class": "BALANCED"}}',
    "empty": "",
    "huge number": '{"schema_version": "1.0", "job": {"name": "x", "duration_s": 1e999}, "verdict": {"class": "BALANCED"}}',
}


def test_hostile_reports_are_rows_with_their_error(jobs):
    for name, text in HOSTILE.items():
        (jobs / name).mkdir()
        (jobs / name / "report.json").write_text(text)
    with (jobs / "sparse.json").open("wb") as file:
        file.truncate(1 << 40)
    (jobs / "sparse").mkdir()
    os.link(jobs / "sparse.json", jobs / "sparse/report.json")
    fleet = build(jobs)
    errors = {job.name: job.error for job in fleet.jobs if job.error}
    assert set(errors) >= {"nan", "deep", "types", "old", "empty", "sparse"}
    assert fleet.totals.judged >= 4
    assert all("\n" not in error and len(error) <= 600 for error in errors.values())
    Fleet.from_json(fleet.to_json())


def test_hostile_texts_are_printable_and_short(tmp_path):
    name = "</script>\x1b[31m\u202e" + "x" * 5000
    report = report_json(name, finding("NEW_CLASS", 10.0, headline=name, next_step=name), hosts=[name])
    report["job"] |= {"start": 1e300, "steps_per_second": -1e308}
    tags = [{"Key": name, "Value": name}] * 100 + [{"Key": 7, "Value": []}, 3]
    odd = {
        "ResourceConfig": {"InstanceType": name, "InstanceCount": 10**9},
        "SecondaryStatusTransitions": [1, {"Status": []}],
    }
    add_job(tmp_path, "x", report, description(name, Tags=tags, BillableTimeInSeconds="x" * 100, **odd))
    add_job(tmp_path, "y", report, {"TrainingStartTime": float("nan"), "CreationTime": "yesterday", "Tags": {"a": 1}})
    fleet = build(tmp_path)
    assert not [job.error for job in fleet.jobs if job.error]
    write_fleet(fleet, tmp_path / "out")
    page = (tmp_path / "out/fleet.html").read_text()
    data = json.loads((tmp_path / "out/fleet.json").read_text())
    assert "</script>\\x1b" not in page
    assert not any(ord(one) < 32 for one in data["jobs"][0]["name"])
    assert max(len(job["name"]) for job in data["jobs"]) <= 200


def test_files_match_the_schema_and_other_readers(jobs, tmp_path):
    jsonschema = pytest.importorskip("jsonschema")
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    (jobs / "bad").mkdir()
    (jobs / "bad/report.json").write_text("{")
    add_job(jobs, "failed", described=description("failed", status="Failed", FailureReason="out of memory"))
    for n in range(4):
        add_job(jobs, f"slow-{n}", report_json(f"slow-{n}", step_ms=200.0 if n == 3 else 100.0, start=START_S + n))
    fleet = build(jobs)
    assert fleet.regressions
    assert fleet.failures
    write_fleet(fleet, tmp_path / "out")
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads((tmp_path / "out/fleet.json").read_text()), schema)
    table = str(tmp_path / "out/fleet.parquet")
    sums = "select count(*), sum(bill_usd), sum(lost_usd), min(started) from read_parquet(?)"
    count, bill, lost, first = duckdb.execute(sums, [table]).fetchone()
    assert (count, bill, lost) == (10, pytest.approx(fleet.totals.bill_usd), pytest.approx(fleet.totals.lost_usd))
    assert first.timestamp() == START_S
    by_cause = "select l.cause, sum(l.usd) from (select unnest(losses) l from read_parquet(?)) group by 1"
    assert dict(duckdb.execute(by_cause, [table]).fetchall()) == pytest.approx(fleet.totals.causes)
    assert polars.read_parquet(table).height == pq.read_table(io.BytesIO(Path(table).read_bytes())).num_rows == 10


def test_the_command(jobs, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = str(tmp_path / "out")
    assert main(["fleet", str(jobs), "--out", out]) == 0
    shown = capsys.readouterr()
    assert "4 jobs cost $5.63; $1.41 of it (25 %) was wasted" in shown.out
    assert "Do this first: it saves up to $" in shown.out
    assert "fleet.html" in shown.err
    assert main(["fleet", str(jobs), "--out", out, "--fail-on", "waste>20%"]) == 1
    assert main(["fleet", str(jobs), "--out", out, "--fail-on", "waste > 30 %", "--group-by", "user,team"]) == 0
    assert main(["fleet", str(jobs), "--out", out, "--tag", "team=missing"]) == 0
    shown = capsys.readouterr()
    assert "jobs were found, and none has team=missing." in shown.out
    assert "there are no jobs" not in shown.err
    assert main(["fleet", str(jobs), "--out", out, "--since", "2020-01-01", "--tag", "team=nlp"]) == 0
    assert "2 jobs" in capsys.readouterr().out
    assert sorted(file.name for file in Path(out).iterdir()) == [
        "fleet-index.bin",
        "fleet.html",
        "fleet.json",
        "fleet.parquet",
    ]


@pytest.mark.parametrize(
    "options",
    [["--fail-on", "waste"], ["--fail-on", "waste>200%"], ["--since", "soon"], ["--tag", "x"], ["--group-by", ","]],
)
def test_wrong_options_are_one_line(jobs, capsys, options):
    with pytest.raises(SystemExit) as ended:
        main(["fleet", str(jobs), *options])
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_sources_that_do_not_exist_are_one_line(tmp_path, capsys):
    assert main(["fleet", str(tmp_path / "none")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_runs_beside_each_other_leave_a_whole_index(jobs, tmp_path, monkeypatch):
    with ThreadPoolExecutor(4) as threads:
        fleets = list(threads.map(lambda _: build(jobs, tmp_path / "out"), range(8)))
    assert all(fleet.jobs == fleets[0].jobs for fleet in fleets)
    assert [file.name for file in (tmp_path / "out").iterdir()] == [NAME]
    read = unread(monkeypatch)
    assert not build(jobs, tmp_path / "out").notes
    assert read == []


def test_an_interrupted_run_keeps_what_it_has_read(jobs, tmp_path, monkeypatch):
    original = building._loaded

    def interrupted(one):
        if one.name == "late":
            raise KeyboardInterrupt
        return original(one)

    late = tmp_path / "late"
    add_job(late, "late", report_json("late"))
    monkeypatch.setattr(building, "_loaded", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build_fleet([str(jobs), str(late)], index=LocalStorage(tmp_path / "out"), progress=False)
    monkeypatch.setattr(building, "_loaded", original)
    read = unread(monkeypatch)
    build(jobs, tmp_path / "out")
    assert read == []


def test_jobs_are_linked_to_pages_that_exist(jobs):
    (jobs / "a/b/job-1" / HTML).write_text("<!doctype html>")
    linked = {job.name for job in build(jobs).jobs if job.report}
    assert linked == {"job-1"}


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({}, False),  # python -c "import torch"
        ({"duration_s": 40.0}, True),
        ({"running": True}, True),  # it may still train
        ({"ranks": report_json()["job"]["ranks"]}, True),
    ],
)
def test_a_process_that_only_imports_a_framework_is_no_training(tmp_path, change, kept):
    """It counted as a job that was not judged, and lowered the coverage."""
    brief = report_json("import", finding("INCONCLUSIVE"), duration=3.0)
    brief["job"] |= {"ranks": [], "loop": None, **change}
    for name, report in (("training", report_json("training")), ("import", brief)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.json").write_text(json.dumps(report))
    fleet = build_fleet([str(tmp_path)])
    assert ("import" in [job.name for job in fleet.jobs]) == kept
    assert fleet.totals.jobs == 1 + kept
    assert any("no training: 1 profile" in note for note in fleet.notes) != kept


def test_a_brief_job_of_the_service_is_kept(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/job.json").write_text(json.dumps(description("a", billable=3, training=3)))
    assert build_fleet([str(tmp_path)]).totals.jobs == 1


def test_a_job_that_has_just_begun_runs_and_is_no_error(tmp_path):
    """Its files are all open: it was listed among those that could not be read."""
    file = tmp_path / "job/system/incremental/2026112600/1795653060.algo-1.json.tmp"
    file.parent.mkdir(parents=True)
    file.write_text("")
    (job,) = build_fleet([str(tmp_path)]).jobs
    assert (job.name, job.status, job.error) == ("job", "InProgress", "")
    os.utime(file, (START_S, START_S))
    (job,) = build_fleet([str(tmp_path)]).jobs
    assert "does not contain a profile" in job.error


def test_jobs_of_one_folder_are_named_alike_and_the_report_of_the_first_names_the_others(tmp_path, capsys):
    shared = tmp_path / "shared"
    for folder, job in ((shared, "slurm-21"), (shared / "anna-slurm-22", "slurm-22")):
        make_job(folder, "--scenario", "healthy", "--minutes", "1", "--gpus", "0")
        (folder / ".sagemaker-ignore").mkdir(exist_ok=True)
        (folder / ".sagemaker-ignore/owner").write_text(f"{job}\nanna\n")
    assert {job.name for job in build(tmp_path).jobs} == {"anna-slurm-21", "anna-slurm-22"}
    capsys.readouterr()
    assert main(["report", str(shared), "--out", str(tmp_path / "out")]) == 0
    assert (
        f"this report is of job slurm-21, the first in {shared}; others there: anna-slurm-22" in capsys.readouterr().err
    )


def test_a_job_that_is_judged_again_keeps_the_end_of_its_report(tmp_path):
    """Of a profile without end markers, only an outdated report had the exit code."""
    folder = tmp_path / "jobs/a"
    make_job(folder / "profiler-output", "--minutes", "2")
    for marker in folder.rglob("training_job_end.ts"):
        marker.unlink()
    (judged,) = build(tmp_path / "jobs").jobs
    assert judged.status == ""
    stored = report_json("a", end=judged.ended) | {"version": "0.0.1"}
    stored["end"] = {"state": "crashed", "exit_code": 3, "error": "ValueError: x", "where": "train.py:3", "step": 5}
    add_job(tmp_path / "jobs", "a", stored)
    (judged,) = build(tmp_path / "jobs").jobs
    assert (judged.judged, judged.status, judged.failure) == (
        "profile",
        "Failed",
        "ValueError: x (train.py:3, exit code 3)",
    )


def test_a_machine_that_jobs_share_is_a_note(tmp_path):
    for place, name in enumerate(("a", "b")):
        add_job(tmp_path / "jobs", name, report_json(name, finding(), start=START_S + place * 0.5 * HOUR))
    (note,) = (note for note in build(tmp_path / "jobs").notes if "more than once" in note)
    assert note.startswith(
        "Counted more than once: 30 min of machines on which 2 jobs ran beside others, such as a and b."
    )
