"""Jobs without a report are judged from their profiles."""

import json
import shutil
from datetime import datetime, timezone

import msgspec
import pytest

from sm_profiler.compact import compact
from sm_profiler.config.launched import Launched
from sm_profiler.fleet.building import build_fleet
from sm_profiler.fleet.finding import as_json, safe_sentence
from sm_profiler.fleet.rows import read_report
from sm_profiler.fleet.wording import advice
from sm_profiler.report import JobInfo, build_report, write_report
from sm_profiler.report.report_json import to_json
from sm_profiler.source import open_source
from sm_profiler.storage import LocalStorage
from tests.support.fleets import START_S, description
from tests.support.jobs import make_job


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    return make_job(tmp_path_factory.mktemp("made") / "profiler-output", "--minutes 2 --gpus 1")


def test_profiles_are_judged_by_workers_and_kept(profile, tmp_path, monkeypatch):
    monkeypatch.setenv("SM_PROFILER_CACHE", "off")
    jobs = tmp_path / "jobs"
    shutil.copytree(profile, jobs / "raw/profiler-output")
    shutil.copytree(profile, jobs / "old/profiler-output")
    compact(open_source(profile), LocalStorage(jobs / "kept"), job="kept")
    write_report(build_report(open_source(jobs / "old")), jobs / "old")
    report = json.loads((jobs / "old/report.json").read_text())
    (jobs / "old/report.json").write_text(json.dumps(report | {"version": "0.0.1"}))
    (jobs / "raw/job.json").write_text(json.dumps(description("raw-1", start=START_S)))
    (jobs / "broken/system/incremental/2026110100").mkdir(parents=True)
    (jobs / "broken/system/incremental/2026110100/1793500000.algo-1.json").write_text("\0garbage")
    fleet = build_fleet([str(jobs)], executor="local:1", index=LocalStorage(tmp_path / "out"), progress=False)
    rows = {job.name: job for job in fleet.jobs}
    judged = [job for job in fleet.jobs if job.judged == "profile" and job.steps]
    assert len(judged) == 3, fleet.jobs
    assert len({(job.verdict, job.steps, job.step_ms, job.gpus) for job in judged}) == 1
    assert rows["raw-1"].status == "Completed"
    assert fleet.totals.jobs == 4
    assert rows["broken"].error or rows["broken"].lost_records
    shutil.rmtree(jobs / "broken")
    again = build_fleet([str(jobs)], executor="no such executor", index=LocalStorage(tmp_path / "out"), progress=False)
    assert again.jobs == tuple(job for job in fleet.jobs if job.name != "broken")


def test_a_job_in_json_and_in_parquet_counts_once(profile, tmp_path, monkeypatch):
    monkeypatch.setenv("SM_PROFILER_CACHE", "off")
    raw = shutil.copytree(profile, tmp_path / "jobs/mine/profiler-output")
    for name in ("mine", "other"):
        compact(open_source(raw), LocalStorage(tmp_path / "jobs/parquet"), job=name)
    (raw.parent / "job.json").write_text(json.dumps(description("mine", start=START_S)))
    for index in (None, LocalStorage(tmp_path / "out"), LocalStorage(tmp_path / "out")):
        fleet = build_fleet([str(tmp_path / "jobs")], executor="local:1", index=index, progress=False)
        assert {job.name: bool(job.bill_usd) for job in fleet.jobs} == {"mine": True, "other": False}


def test_reports_have_what_a_fleet_reads(profile):
    report = build_report(open_source(profile))
    found = read_report(to_json(report).encode())
    assert found.version
    assert found.job.loader is not None
    assert found.job.ranks[0].train_steps > 0


CONFIG = {"S3OutputPath": "s3://b/out", "ProfilingParameters": {"DataloaderProfilingConfig": "{}"}}
AGENT = {"SM_PROFILER_AUTO": "1", "SM_PROFILER_CONFIG": json.dumps(CONFIG)}
HOOK_OFF = AGENT | {"SM_PROFILER_AUTO": "0"}
INTERRUPTED = [
    {"Status": "Training", "StartTime": START_S, "EndTime": START_S + 60},
    {"Status": "Interrupted", "StartTime": START_S + 60, "EndTime": START_S + 90},
    {"Status": "Training", "StartTime": START_S + 90, "EndTime": START_S + 120},
]


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (
            {"Environment": AGENT},
            "SM_PROFILER_AUTO=1 is set and framework metrics are configured, but no step is stored",
        ),
        ({"Environment": HOOK_OFF}, "The hook was off"),
        ({"ProfilerConfig": CONFIG}, "The hook was off"),
        ({"Environment": AGENT, "status": "Stopped"}, "the job ended early"),
        ({"Environment": AGENT, "SecondaryStatusTransitions": INTERRUPTED}, "no step is stored"),
    ],
)
def test_a_job_without_steps_has_the_reason_of_its_report(tmp_path, monkeypatch, job, why):
    monkeypatch.setenv("SM_PROFILER_CACHE", "off")
    raw = make_job(tmp_path / "jobs/mine/profiler-output", "--minutes 2 --scenario low-gpu")
    shutil.rmtree(raw / "framework")
    answer = description("mine", start=START_S, **job)
    (raw.parent / "job.json").write_text(json.dumps(answer))
    (row,) = build_fleet([str(tmp_path / "jobs")], executor="local:1", progress=False).jobs
    report = build_report(open_source(raw), job=JobInfo("mine", description=answer))
    assert why in row.headline
    verdict = read_report(to_json(report).encode()).verdict
    assert (row.headline, row.next_step) == (safe_sentence(verdict.headline), safe_sentence(verdict.next_step))


def test_a_job_without_a_profile_has_the_reason_of_its_report(tmp_path):
    (tmp_path / "jobs/mine").mkdir(parents=True)
    answer = description("mine", start=START_S, Environment=HOOK_OFF)
    (tmp_path / "jobs/mine/job.json").write_text(json.dumps(answer))
    (row,) = build_fleet([str(tmp_path / "jobs")], progress=False).jobs
    why, todo = Launched.of(answer).why_no_profile()
    assert (row.headline, row.next_step) == (f"It has no profile: {why}.", "Set SM_PROFILER_AUTO=1.")
    assert todo == "set SM_PROFILER_AUTO=1"
    assert why in advice(row)


def test_a_job_is_judged_from_all_of_its_description():
    """The workers got the times of its attempts alone, and found its hook off."""
    began = datetime(2026, 11, 27, 12, tzinfo=timezone.utc)
    answer = description("mine", Environment=AGENT, ProfilerConfig={"DisableProfiler": True}, TrainingStartTime=began)
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(as_json(answer)))
    assert Launched.of(sent) == Launched.of(answer)
    assert sent["TrainingStartTime"] == began.timestamp()
