"""Jobs are found below prefixes, too, and listed again as they come."""

import pytest

from sm_profiler.errors import SourceError
from sm_profiler.monitor.run_state import write_state
from sm_profiler.report.saved import saved_verdict
from sm_profiler.serve.jobs import MAX_DEPTH, Jobs, find_jobs
from sm_profiler.storage.s3 import S3Storage

KEYS = (
    "jobs/first/profiler-output/system/incremental/2026010100/1.algo-1.json",
    "jobs/second/profiler-output/framework/training_job_end.ts",
    "jobs/second/model.tar.gz",
    "jobs/third/output/model.tar.gz",
    "jobs/note.txt",
)


class Bucket:
    """An S3 client whose listings have one entry a page."""

    def list_objects_v2(self, Prefix, ContinuationToken="0", **_):  # noqa: N803 - the API's names
        below = [key for key in KEYS if key.startswith(Prefix)]
        found = sorted(
            {Prefix + key[len(Prefix) :].partition("/")[0] + "/" for key in below if "/" in key[len(Prefix) :]}
        )
        at = int(ContinuationToken)
        more = at + 1 < len(found)
        page = {"CommonPrefixes": [{"Prefix": one} for one in found[at : at + 1]], "IsTruncated": more}
        return {**page, "NextContinuationToken": str(at + 1)} if more else page


@pytest.fixture
def bucket(monkeypatch):
    def opened(uri):
        name, _, prefix = uri.removeprefix("s3://").partition("/")
        return S3Storage(name, prefix, client=Bucket())

    monkeypatch.setattr("sm_profiler.serve.jobs.open_storage", opened)


def test_finds_the_jobs_below_a_prefix(bucket):
    found = list(find_jobs("s3://bucket/jobs"))
    assert [(one.name, one.where) for one in found] == [
        ("first", "s3://bucket/jobs/first"),
        ("second", "s3://bucket/jobs/second"),
    ]


@pytest.mark.parametrize("uri", ["s3://bucket/jobs/first", "s3://bucket/jobs/first/profiler-output/"])
def test_a_prefix_that_is_a_job_is_one_job(bucket, uri):
    (found,) = find_jobs(uri)
    assert found.name == "first"


def test_another_word_is_the_name_of_a_training_job():
    (found,) = find_jobs("my-training-job")
    assert found.where == found.name == "my-training-job"


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


def test_a_run_that_has_written_nothing_yet_is_a_job(tmp_path):
    (tmp_path / "run").mkdir()
    write_state(tmp_path / "run")
    (found,) = find_jobs(str(tmp_path))
    assert (found.name, found.state) == ("run", "running")


def test_does_not_search_deeper_than_its_limit(tmp_path):
    deep = tmp_path.joinpath(*"abcdef"[: MAX_DEPTH + 1])
    (deep / "system").mkdir(parents=True)
    assert list(find_jobs(str(tmp_path))) == []


def test_a_source_that_cannot_be_listed_is_a_problem_of_its_own(tmp_path, monkeypatch):
    def opened(_):
        raise SourceError("no credentials")

    monkeypatch.setattr("sm_profiler.serve.jobs.open_storage", opened)
    (tmp_path / "job" / "system").mkdir(parents=True)
    jobs = Jobs([str(tmp_path), "s3://bucket/x"])
    assert [one.name for one in jobs.listing()] == ["job"]
    assert jobs.problems == ["s3://bucket/x: no credentials"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"verdict": {"class": "X"}}', '{"verdict": {"class": "GC_BOUND"}}', "[" * 99999]
)
def test_a_damaged_report_has_no_verdict(tmp_path, text):
    (tmp_path / "report.json").write_text(text)
    assert saved_verdict(tmp_path) is None
