"""Jobs are listed again as they come, with the verdicts of their reports."""

import json

import pytest

from sm_profiler.errors import SourceError
from sm_profiler.formats.layout import TraceFile
from sm_profiler.jobs.finding import Job
from sm_profiler.monitor.run_state import write_state
from sm_profiler.report.report_json import read_verdict
from sm_profiler.serve.jobs import Endings, Jobs, Verdicts
from sm_profiler.serve.reading import JobStatus
from sm_profiler.storage import LocalStorage
from tests.support.fleets import HOUR, report_json

REPORT = b'{"verdict": {"class": "INPUT_BOUND", "headline": "It waits for data."}}'


def test_a_new_job_is_listed_without_a_restart(tmp_path):
    now = [0.0]
    jobs = Jobs([str(tmp_path)], clock=lambda: now[0])
    assert jobs.listing() == []
    (tmp_path / "new" / "framework").mkdir(parents=True)
    now[0] += 60
    (found,) = jobs.listing()
    assert found.state == "running"
    write_state(tmp_path / "new", 0)
    now[0] += 60
    assert jobs.listing()[0].state == "ended"


def test_a_job_whose_folder_was_removed_is_not_known_any_more(tmp_path):
    now, folder = [0.0], tmp_path / "job"
    (folder / "framework").mkdir(parents=True)
    jobs = Jobs([str(tmp_path)], clock=lambda: now[0])
    (found,) = jobs.listing()
    folder.joinpath("framework").rmdir()
    folder.rmdir()
    now[0] += 60
    assert jobs.known(found.id) is None


def test_a_source_that_cannot_be_listed_is_a_problem_of_its_own(tmp_path, monkeypatch):
    def opened(_):
        raise SourceError("no credentials")

    monkeypatch.setattr("sm_profiler.jobs.finding.open_storage", opened)
    (tmp_path / "job" / "system").mkdir(parents=True)
    jobs = Jobs([str(tmp_path), "s3://bucket/x"])
    assert [one.name for one in jobs.listing()] == ["job"]
    assert jobs.problems == ["s3://bucket/x: no credentials"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"verdict": {"class": "X"}}', '{"verdict": {"class": "GC_BOUND"}}', "[" * 99999]
)
def test_a_damaged_report_has_no_verdict(text):
    assert read_verdict(text.encode()) is None


def test_a_report_that_could_not_be_read_is_read_again_later():
    now, answers = [0.0], [SourceError("throttled"), SourceError("throttled"), REPORT]
    asked = []

    def read():
        asked.append(now[0])
        if isinstance(answer := answers[len(asked) - 1], Exception):
            raise answer
        return answer

    verdicts = Verdicts(clock=lambda: now[0])
    job = Job("a", "/jobs/a", state="ended", identity="1", read_report=read)
    for now[0] in range(0, 400, 20):
        found = verdicts.of(job)
    assert asked == [0, 60, 180]
    assert found.kind.name == "INPUT_BOUND"


def test_a_report_is_read_again_when_it_changes():
    reports = [REPORT, REPORT.replace(b"INPUT_BOUND", b"HOST_BOUND")]
    verdicts, found = Verdicts(), []
    for identity, report in zip("12", reports, strict=True):
        job = Job("a", "/jobs/a", identity=identity, read_report=lambda report=report: report)
        found += [verdicts.of(job).kind.name, verdicts.of(job).kind.name]
    assert found == ["INPUT_BOUND"] * 2 + ["HOST_BOUND"] * 2


NOW = 1_700_000_000.0


def running(ago, **more):
    """Return a job on S3 whose files changed some seconds ago."""
    return Job("a", "s3://bucket/prefix/a", NOW - ago, "running", **more)


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """Return a function that stores the last record of a rank; S3 has no job of this name in the account."""
    monkeypatch.setattr("sm_profiler.serve.jobs.open_storage", lambda _: LocalStorage(tmp_path))
    monkeypatch.setattr(JobStatus, "ask", lambda _: None)

    def store(rank, end, base="profiler-output"):
        path = tmp_path / base / TraceFile(int((NOW - 150) * 1e6), f"{rank}-algo-1", "pythontimeline").path
        path.parent.mkdir(parents=True, exist_ok=True)
        records = [
            {"name": "x" * 70_000, "ph": "X"},
            {"name": "sm_profiler/process", "ph": "M", "args": {"rank": rank}},
        ]
        records[1]["args"] |= {"end": end} if end else {}
        path.write_text("[\n" + ",\n".join(map(json.dumps, records)) + "\n]\n")

    return store


def test_a_job_on_s3_is_over_when_all_its_processes_have_recorded_their_end(bucket):
    """It was shown as running for 15 minutes after its last file."""
    endings = Endings(now=lambda: NOW)
    assert not endings.is_over(running(150))  # nothing is recorded
    bucket(0, "crashed")
    bucket(1, "")
    assert not endings.is_over(running(150))
    bucket(1, "killed")
    assert endings.is_over(running(150))
    assert not endings.is_over(running(60))  # the next file may be on its way
    assert not endings.is_over(Job("a", "/jobs/a", NOW - 150, "running"))


def test_a_job_on_s3_is_over_when_its_report_or_the_account_has_its_end(bucket, monkeypatch):
    stored = report_json(start=NOW - 170 - HOUR) | {"end": {"state": "crashed", "exit_code": 1, "error": "", "step": 5}}
    bucket(0, "")
    endings = Endings(now=lambda: NOW)
    assert endings.is_over(running(150, read_report=lambda: json.dumps(stored).encode()))
    stored["job"]["end"] -= 1000
    assert not Endings(now=lambda: NOW).is_over(running(150, read_report=lambda: json.dumps(stored).encode()))
    monkeypatch.setattr(JobStatus, "ask", lambda self: self.learn({"TrainingJobStatus": "Stopped"}))
    assert Endings(now=lambda: NOW).is_over(running(150))
    bucket(0, "completed")
    monkeypatch.setattr(JobStatus, "ask", lambda self: self.learn({"TrainingJobStatus": "InProgress"}))
    assert not Endings(now=lambda: NOW).is_over(running(150))  # it resumes
