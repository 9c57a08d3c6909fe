"""Jobs are found in folders, below prefixes, in data sets of Parquet and in accounts: the same ones for all commands."""

import os
import time
from datetime import datetime, timezone

import pytest

from sm_profiler.errors import SourceError
from sm_profiler.exporters.mcp import jobs_of
from sm_profiler.formats.layout import hour_folder
from sm_profiler.jobs import listing
from sm_profiler.jobs.finding import MAX_DEPTH, find_jobs
from sm_profiler.jobs.listing import find_places
from sm_profiler.monitor.run_state import write_state
from sm_profiler.serve.jobs import Jobs
from sm_profiler.source.opening import not_a_folder, split_account
from sm_profiler.storage import LocalStorage
from sm_profiler.storage.s3 import S3Storage

NOW = None  # the time of the listing: other tests may run for long before
LONG_AGO = datetime(2026, 1, 1, tzinfo=timezone.utc)
KEYS = {
    "jobs/first/profiler-output/system/incremental/2026010100/1.algo-1.json": LONG_AGO,
    "jobs/first/rule-output/ProfilerReport/profiler-output/report.json": LONG_AGO,
    "jobs/fresh/output/system/incremental/2026010100/1.algo-1.json": NOW,
    "jobs/note.txt": NOW,
    "jobs/second/framework/pevents/2026010100/1_0-algo-1_pythontimeline.json": NOW,
    "jobs/second/framework/training_job_end.ts": NOW,
    "jobs/second/model.tar.gz": NOW,
    "jobs/set/files/job=in%20Parquet/data.parquet": NOW,
    "jobs/third/output/model.tar.gz": NOW,
}


class Bucket:
    """An S3 client whose listings have two keys a page."""

    def list_objects_v2(self, Prefix, StartAfter="", ContinuationToken="", **_):  # the API's names
        after = ContinuationToken or StartAfter
        found = sorted(key for key in KEYS if key.startswith(Prefix) and key > after)
        page = [{"Key": key, "Size": 1, "LastModified": KEYS[key] or datetime.now(timezone.utc)} for key in found[:2]]
        more = len(found) > len(page)
        return {
            "Contents": page,
            "IsTruncated": more,
            **({"NextContinuationToken": page[-1]["Key"]} if more else {}),
        }


@pytest.fixture
def bucket(monkeypatch):
    def opened(uri):
        name, _, prefix = uri.removeprefix("s3://").partition("/")
        return S3Storage(name, prefix, client=Bucket())

    monkeypatch.setattr("sm_profiler.jobs.finding.open_storage", opened)


def test_finds_the_jobs_below_a_prefix(bucket):
    found = list(find_jobs("s3://bucket/jobs"))
    assert [(one.name, one.where, one.state) for one in found] == [
        ("first", "s3://bucket/jobs/first", "ended"),
        ("fresh", "s3://bucket/jobs/fresh/output", "running"),
        ("second", "s3://bucket/jobs/second", "ended"),
        ("in Parquet", "s3://bucket/jobs/set/job=in Parquet", "ended"),
    ]
    assert [bool(one.identity) for one in found] == [True, False, False, False]


@pytest.mark.parametrize("uri", ["s3://bucket/jobs/first", "s3://bucket/jobs/first/profiler-output/"])
def test_a_prefix_that_is_a_job_is_one_job(bucket, uri):
    (found,) = find_jobs(uri)
    assert (found.name, found.where) == ("first", uri.rstrip("/"))


def test_a_prefix_without_anything_is_a_job_that_is_still_to_write(bucket):
    (found,) = find_jobs("s3://bucket/later/train/profiler-output")
    assert found.name == "train"


def test_of_a_long_job_only_the_latest_files_are_listed(monkeypatch, tmp_path):
    monkeypatch.setattr(listing, "SKIP_AFTER", 5)
    now = time.time()
    hours = [hour_folder((now - 3600 * ago) * 1e6) for ago in range(24)]
    for folder in ("system/incremental", "framework/pevents"):
        for hour in hours:
            (tmp_path / "job" / folder / hour).mkdir(parents=True)
            for number in range(10):
                file = tmp_path / "job" / folder / hour / f"{number}.algo-1.json"
                file.touch()
                os.utime(file, (now, now) if hour == hours[0] else (1, 1))
    (short,) = find_places(LocalStorage(tmp_path), recent_only=True).places
    (whole,) = find_places(LocalStorage(tmp_path)).places
    assert short.newest == whole.newest == pytest.approx(now)
    assert (short.files, whole.files) == (2 * (5 + 20), 2 * 240)


def test_another_word_is_the_name_of_a_training_job():
    (found,) = find_jobs("my-training-job")
    assert found.where == found.name == "my-training-job"


def test_a_job_of_an_account_needs_no_request():
    (found,) = find_jobs("account:eu-west-1/train")
    assert (found.name, found.where) == ("train", "account:eu-west-1/train")


def test_what_is_no_source_is_refused():
    with pytest.raises(SourceError, match="is not a folder"):
        list(find_jobs("no/such/folder"))


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("s3:/bucket/job", "for a bucket, write s3://bucket/job"),
        ("s3:bucket/job", "for a bucket, write s3://bucket/job"),
        ("us-gov-west-1", "write account:us-gov-west-1"),
        ("account", "write account:REGION"),
    ],
)
def test_a_source_that_resembles_another_kind_has_a_hint(source, hint):
    assert hint in str(not_a_folder(source))
    assert "write" not in str(not_a_folder("runs"))


def test_what_is_no_region_is_no_account():
    for where in ("account:mars", "account:us-east-1x/job"):
        with pytest.raises(SourceError, match="is not a region: write account:REGION, such as account:us-east-1"):
            list(find_jobs(where))
    assert split_account("account:") == ("", "")


def test_an_account_without_a_region_names_one(monkeypatch, tmp_path):
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(SourceError, match=r"^account: needs a region: account:us-east-1$"):
        list(find_jobs("account:"))


def test_a_run_that_has_written_nothing_yet_is_a_job(tmp_path):
    (tmp_path / "run").mkdir()
    write_state(tmp_path / "run")
    (found,) = find_jobs(str(tmp_path))
    assert (found.name, found.state) == ("run", "running")


def test_each_job_of_a_data_set_in_parquet_is_one(tmp_path):
    for name in ("one", "two%20words"):
        table = tmp_path / "set" / "files" / f"job={name}" / "data.parquet"
        table.parent.mkdir(parents=True)
        table.touch()
    (tmp_path / "set" / "system").mkdir()
    for root in (tmp_path, tmp_path / "set"):
        assert [one.name for one in find_jobs(str(root))] == ["one", "two words"]
    assert next(iter(find_jobs(str(tmp_path)))).where == f"{tmp_path}/set/job=one"


def test_does_not_search_deeper_than_its_limit(tmp_path):
    deep = tmp_path.joinpath(*"abcdef"[: MAX_DEPTH + 1])
    (deep / "system").mkdir(parents=True)
    assert list(find_jobs(str(tmp_path))) == []


def test_the_page_and_agents_show_the_same_jobs(tmp_path):
    for name in ("a", "team/b/profiler-output", "team/deep/er/c"):
        (tmp_path / name / "system").mkdir(parents=True)
    sources = [str(tmp_path), "account:eu-west-1/train"]
    shown = sorted(one.name for one in Jobs(sources).listing())
    assert shown == sorted(one.name for one in jobs_of(sources)) == ["a", "b", "c", "train"]
