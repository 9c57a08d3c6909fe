"""A folder and S3 yield the same columns, in spite of faults on the way."""

import os
import shutil

import numpy as np
import pytest

from sm_profiler.config.launched import Launched
from sm_profiler.debugger import FrameworkProfile, ProfilerConfig
from sm_profiler.errors import SourceError
from sm_profiler.formats.columns import Category
from sm_profiler.launch import agent_environment
from sm_profiler.report.recordings import holds_only_traces
from sm_profiler.source import open_source
from sm_profiler.source.cache import wait_for_copies
from sm_profiler.source.job import describe, profiler_output, stored_profile
from sm_profiler.source.opening import given
from sm_profiler.storage.s3 import S3Storage
from tests.support.jobs import make_job

PREFIX = "team/job-7/profiler-output"


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return make_job(tmp_path_factory.mktemp("job") / "profiler-output", "--minutes", "3", "--horovod")


@pytest.fixture
def uploaded(endpoint, job, monkeypatch):
    made = S3Storage.__init__
    monkeypatch.setattr(
        S3Storage, "__init__", lambda self, *args, **kwargs: made(self, *args, **{"sleep": lambda _s: None} | kwargs)
    )
    client = endpoint.client()
    for path in sorted(job.rglob("*")):
        if path.is_file():
            client.put_object(Bucket="jobs", Key=f"{PREFIX}/{path.relative_to(job).as_posix()}", Body=path.read_bytes())
    return client


def assert_same(one, other):
    for field in one.__attrs_attrs__:
        a, b = (getattr(each, field.name) for each in (one, other))
        if isinstance(a, Category):
            a, b = a.decode(), b.decode()
        np.testing.assert_array_equal(a, b, err_msg=field.name)


@pytest.mark.parametrize(("where", "processes"), [(PREFIX, 1), (f"{PREFIX}/", 2), ("team/job-7", 1)])
def test_s3_and_folder_read_the_same(uploaded, job, where, processes):
    remote, local = open_source(f"s3://jobs/{where}", cache=False, processes=processes), open_source(job, cache=False)
    assert remote.uri == f"s3://jobs/{PREFIX}"
    assert_same(remote.system(), local.system())
    assert_same(remote.events(), local.events())
    assert remote.quality() == local.quality()
    assert remote.finished


def test_throttling_and_truncation_change_nothing(endpoint, uploaded, job):
    count = [0]

    def rule(method, _path, _query):
        with endpoint.lock:
            count[0] += 1
            number = count[0]
        if method != "GET":
            return None
        return ("503 Slow Down", "<Error><Code>SlowDown</Code></Error>") if number % 3 == 0 else None

    def cut(method, path, _query):
        return (
            (lambda body: body[: len(body) // 3])
            if method == "GET" and path.endswith(".json") and count[0] % 5 == 0
            else None
        )

    endpoint.rules += [rule, cut]
    remote, local = open_source(f"s3://jobs/{PREFIX}", cache=False), open_source(job, cache=False)
    assert_same(remote.events(), local.events())
    assert_same(remote.system(), local.system())


def test_late_and_deleted_objects(endpoint, uploaded, job):
    keys = sorted(path.relative_to(job).as_posix() for path in (job / "system" / "incremental").rglob("*.json"))
    late, gone = keys[1], keys[2]
    uploaded.delete_object(Bucket="jobs", Key=f"{PREFIX}/{late}")
    source = open_source(f"s3://jobs/{PREFIX}", cache=False)
    uploaded.delete_object(Bucket="jobs", Key=f"{PREFIX}/{gone}")
    rows = sum(len(batch.system) for batch in source.batches())
    expected = open_source(job, cache=False)
    whole = len(expected.system())
    counts = {key: (job / key).read_bytes().count(b"\n") for key in keys}
    assert rows == whole - counts[late] - counts[gone]
    assert {quality.path: quality.reason for quality in source.quality() if quality.status == "refused"} == {
        gone: "removed before it was read"
    }
    uploaded.put_object(Bucket="jobs", Key=f"{PREFIX}/{late}", Body=(job / late).read_bytes())
    assert source.refresh() == 1
    assert sum(len(batch.system) for batch in source.batches()) == counts[late]


def test_refresh_needs_few_requests(endpoint, uploaded):
    source = open_source(f"s3://jobs/{PREFIX}", cache=False)
    list(source.batches())
    endpoint.requests.clear()
    assert source.refresh() == 0
    assert len(endpoint.requests) == 2
    assert all("start-after" in query for _, _, query in endpoint.requests)


def test_the_cached_copy_is_used_until_an_object_changes(endpoint, uploaded, job, monkeypatch, tmp_path):
    monkeypatch.setenv("SM_PROFILER_CACHE", str(tmp_path))
    for module in ("cache", "profile"):
        monkeypatch.setattr(f"sm_profiler.source.{module}.WORTH_BYTES", 0)
    first = open_source(f"s3://jobs/{PREFIX}").system()
    wait_for_copies()
    endpoint.requests.clear()
    assert_same(open_source(f"s3://jobs/{PREFIX}").system(), first)
    assert not [path for _, path, _ in endpoint.requests if path.endswith(".json")]
    key = min(path.relative_to(job).as_posix() for path in (job / "system").rglob("*.json"))
    uploaded.put_object(Bucket="jobs", Key=f"{PREFIX}/{key}", Body=b"")
    assert len(open_source(f"s3://jobs/{PREFIX}").system()) < len(first)


def test_failures_are_one_line(endpoint, uploaded):
    with pytest.raises(SourceError, match="does not contain a profile"):
        open_source("s3://jobs/nothing-here")
    endpoint.fail("403 Forbidden", "AccessDenied", part=".json")
    source = open_source(f"s3://jobs/{PREFIX}", cache=False)
    with pytest.raises(SourceError, match="access denied") as caught:
        source.system()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("inside", ["framework", "framework/pevents/", "system", "system/incremental"])
def test_a_folder_inside_of_a_profile_names_the_profile(uploaded, job, inside):
    with pytest.raises(SourceError, match=f"it is a folder inside of one: name s3://jobs/{PREFIX}$"):
        open_source(f"s3://jobs/{PREFIX}/{inside}")
    with pytest.raises(SourceError, match=f"it is a folder inside of one: name {job}$"):
        open_source(job / inside)
    assert not holds_only_traces(str(job / inside))  # it refused the hook's own as “a trace of another program”


def test_a_prefix_of_jobs_names_them(uploaded, job, tmp_path):
    with pytest.raises(SourceError, match=r"there is one below it: name s3://jobs/team/job-7$"):
        open_source("s3://jobs")
    path = next(path for path in job.rglob("*.json") if "incremental" in str(path))
    for number in range(9):
        key = f"many/job-{number}/profiler-output/{path.relative_to(job).as_posix()}"
        uploaded.put_object(Bucket="jobs", Key=key, Body=path.read_bytes())
        if number == 1:
            expected = r"there are 2 below it: name one of s3://jobs/many/job-0, s3://jobs/many/job-1, or read all"
            with pytest.raises(SourceError, match=expected):
                open_source("s3://jobs/many")
    with pytest.raises(
        SourceError,
        match=r"there are more than 5 below it: name one of s3://.*/job-4, or read all of them with 'sm-profiler fleet' or 'sm-profiler serve'$",
    ):
        open_source("s3://jobs/many")
    shutil.copytree(job, tmp_path / "runs" / "one" / "profiler-output")
    with pytest.raises(SourceError, match=f"there is one below it: name {tmp_path}/runs/one$"):
        open_source(tmp_path / "runs")
    (tmp_path / "system").mkdir()  # of something else
    with pytest.raises(SourceError, match="there are no files under system/"):
        open_source(tmp_path / "system")


@pytest.mark.parametrize(
    ("status", "code", "line"),
    [
        ("404 Not Found", "NoSuchBucket", "the bucket does not exist: check its name, or create it. To do: start the job again"),
        ("403 Forbidden", "AccessDenied", "these credentials may not read it. To do: use credentials that may read it."),
    ],
)  # fmt: skip
def test_a_job_whose_profile_cannot_be_read_has_reason_place_and_advice(endpoint, monkeypatch, status, code, line):
    """The line named a URI with `/system/` at its end, and neither the job nor what to do."""
    answer = {"TrainingJobName": "resnet-7", "ProfilerConfig": {"S3OutputPath": "s3://gone/team"}}
    monkeypatch.setattr("sm_profiler.source.job.describe", lambda *_, **__: answer)
    endpoint.fail(status, code, part="gone")
    with pytest.raises(SourceError) as caught:
        open_source("resnet-7", client=endpoint.client())
    text = str(caught.value)
    assert text.startswith(
        "the profile of training job resnet-7 cannot be read: s3://gone/team/resnet-7/profiler-output"
    )
    assert line in text


def test_a_job_is_found_in_its_second_place_if_the_first_has_no_bucket(endpoint, uploaded, monkeypatch):
    paths = {"ProfilerConfig": {"S3OutputPath": "s3://gone/"}, "OutputDataConfig": {"S3OutputPath": "s3://jobs/team"}}
    monkeypatch.setattr("sm_profiler.source.job.describe", lambda *_, **__: {"TrainingJobName": "job-7", **paths})
    assert open_source("job-7", client=endpoint.client()).uri == f"s3://jobs/{PREFIX}"
    places = ["s3://gone/job-7/profiler-output", f"s3://jobs/{PREFIX}"]
    assert stored_profile(places, client=endpoint.client()) == places[1]
    with pytest.raises(SourceError, match="the bucket does not exist"):
        stored_profile(places[:1], client=endpoint.client())


@pytest.mark.parametrize("partition", ["aws", "aws-cn"])
def test_the_arn_of_a_job_is_taken_for_its_name(partition):
    arn = f"arn:{partition}:sagemaker:eu-west-1:123456789012:training-job/resnet-7"
    assert given(f" {arn}\n") == "account:eu-west-1/resnet-7"
    assert given(arn.replace("training-job", "processing-job")).startswith("arn:")


@pytest.mark.parametrize("code", ["AccessDenied", "KMS.DisabledException", "InvalidObjectState"])
def test_one_denied_object_is_refused_and_counted(endpoint, uploaded, job, code):
    denied = min(path.relative_to(job).as_posix() for path in (job / "system").rglob("*.json"))
    endpoint.fail("403 Forbidden", code, part=denied.rpartition("/")[2])
    source = open_source(f"s3://jobs/{PREFIX}", cache=False)
    assert len(source.system()) > 0
    refused = {quality.path: quality.reason for quality in source.quality() if quality.status == "refused"}
    assert refused == {denied: "access denied"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_one_unreadable_file_is_refused_and_counted(job, tmp_path):
    copy = shutil.copytree(job, tmp_path / "job")
    denied = min((copy / "system").rglob("*.json"))
    denied.chmod(0)
    source = open_source(copy, cache=False)
    assert len(source.system()) > 0
    assert [quality.reason for quality in source.quality() if quality.status == "refused"] == ["access denied"]


class Jobs:
    def __init__(self, answer):
        self.answer = answer

    def describe_training_job(self, **_request):
        return self.answer


def test_training_jobs_by_name(endpoint):
    job = {"TrainingJobName": "resnet-7", "ProfilerConfig": {"S3OutputPath": "s3://jobs/team/"}}
    assert profiler_output("resnet-7", client=Jobs(job)) == "s3://jobs/team/resnet-7/profiler-output"
    job = {"TrainingJobName": "resnet-7", "OutputDataConfig": {"S3OutputPath": "s3://jobs/models"}}
    assert profiler_output("resnet-7", client=Jobs(job)) == "s3://jobs/models/resnet-7/profiler-output"
    with pytest.raises(SourceError, match="resnet-7 has no profiler output"):
        profiler_output("resnet-7", client=Jobs({}))


def test_a_job_without_a_network_has_its_profile_where_the_service_stored_it():
    job = {
        "EnableNetworkIsolation": True,
        "Environment": {"SM_PROFILER_AUTO": "1"},
        "OutputDataConfig": {"S3OutputPath": "s3://jobs/models"},
    }
    synced = {**job, "CheckpointConfig": {"S3Uri": "s3://jobs/checkpoints/"}}
    assert profiler_output("resnet-7", client=Jobs(synced)) == "s3://jobs/checkpoints/sm-profiler"
    with pytest.raises(SourceError, match=r"s3://jobs/models/resnet-7/output/output\.tar\.gz; download and unpack"):
        profiler_output("resnet-7", client=Jobs(job))
    managed = {**synced, "ProfilerConfig": {"S3OutputPath": "s3://jobs/team"}}
    assert profiler_output("resnet-7", client=Jobs(managed)).startswith("s3://jobs/team/")
    profile = ProfilerConfig(framework_profile_params=FrameworkProfile())
    alone = agent_environment(profile, network_isolation=True)  # without checkpoint_path
    with pytest.raises(
        SourceError, match=r"the folder sm-profiler in s3://jobs/models/resnet-7/output/output\.tar\.gz"
    ):
        profiler_output("resnet-7", client=Jobs({**synced, "Environment": alone}))


def test_a_job_without_a_network_whose_environment_was_made_without_that_has_no_archive():
    """Its LocalPath is not stored; an endpoint that does not isolate its jobs has the uploads."""
    profile = ProfilerConfig(framework_profile_params=FrameworkProfile())
    job = {
        "EnableNetworkIsolation": True,
        "TrainingJobStatus": "Completed",
        "Environment": agent_environment(profile, s3_output_path="s3://jobs/team"),
        "OutputDataConfig": {"S3OutputPath": "s3://jobs/models"},
    }
    assert profiler_output("resnet-7", client=Jobs(job)) == "s3://jobs/team/resnet-7/profiler-output"
    why, advice = Launched.of(job).why_no_profile()
    assert why == "its container had no network, and what was recorded in /opt/ml/output/profiler is lost with it"
    assert "agent_environment(…, network_isolation=True)" in advice
    kept = agent_environment(ProfilerConfig(framework_profile_params=FrameworkProfile(local_path="/tmp/mine")))
    with pytest.raises(SourceError, match="what was recorded in /tmp/mine is lost with it"):
        profiler_output("resnet-7", client=Jobs({**job, "Environment": kept}))


def test_unknown_jobs_are_named():
    for call in (lambda: describe("no-such-job"), lambda: open_source("no-such-job")):
        with pytest.raises(SourceError, match="no-such-job") as caught:
            call()
        assert "\n" not in str(caught.value)
