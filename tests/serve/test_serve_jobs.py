"""Jobs are listed again as they come, with the verdicts of their reports."""

import pytest

from sm_profiler.errors import SourceError
from sm_profiler.jobs.finding import Job
from sm_profiler.monitor.run_state import write_state
from sm_profiler.report.report_json import read_verdict
from sm_profiler.serve.jobs import Jobs, Verdicts

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
