"""The jobs of an account: pages, tags, throttling, and what is asked again."""

import io
import json
import time

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError, EndpointConnectionError
from moto import mock_aws

from sm_profiler.cli import main
from sm_profiler.errors import SourceError
from sm_profiler.fleet import finding as candidates
from sm_profiler.fleet.building import build_fleet, read_index
from sm_profiler.fleet.wording import summary
from sm_profiler.jobs import account, listing
from sm_profiler.jobs.account import ATTEMPTS, Account
from sm_profiler.storage import LocalStorage, open_storage
from sm_profiler.storage.s3 import unknown_region
from tests.support.fleets import START_S, finding, report_json

REGION = "us-east-1"
BUCKET = "jobs"


@pytest.fixture
def service(monkeypatch, tmp_path):
    """Moto's SageMaker and S3 with five jobs on pages of two; two have reports, one was not profiled."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setattr(account, "PAGE", 2)
    with mock_aws():
        sagemaker, s3 = boto3.client("sagemaker", REGION), boto3.client("s3", REGION)
        s3.create_bucket(Bucket=BUCKET)
        for n in range(5):
            sagemaker.create_training_job(
                TrainingJobName=f"train-{n}",
                AlgorithmSpecification={"TrainingImage": "1.dkr.ecr/train:7", "TrainingInputMode": "File"},
                RoleArn="arn:aws:iam::1:role/x",
                OutputDataConfig={"S3OutputPath": f"s3://{BUCKET}/out"},
                ResourceConfig={"InstanceType": "ml.g5.xlarge", "InstanceCount": 2, "VolumeSizeInGB": 1},
                StoppingCondition={"MaxRuntimeInSeconds": 60},
                Tags=[{"Key": "team", "Value": "nlp" if n < 2 else "vision"}],
            )
        for n in range(2):
            report = report_json(f"train-{n}", finding("INPUT_BOUND", 1800.0), start=START_S)
            key = f"out/train-{n}/rule-output/ProfilerReport/profiler-output/report.json"
            s3.put_object(Bucket=BUCKET, Key=key, Body=json.dumps(report))
        yield sagemaker


def fleet_of(tmp_path, **options):
    return build_fleet([f"account:{REGION}"], index=LocalStorage(tmp_path), progress=False, **options)


def test_jobs_of_an_account(service, tmp_path):
    fleet = fleet_of(tmp_path)
    assert (fleet.totals.jobs, fleet.totals.judged, fleet.totals.unreadable) == (5, 2, 0)
    rows = {job.name: job for job in fleet.jobs}
    assert rows["train-0"].losses[0].cause == "INPUT_BOUND"
    assert (rows["train-0"].tags, rows["train-0"].instances) == ({"team": "nlp"}, 2)
    assert rows["train-4"].image == "1.dkr.ecr/train:7"
    assert rows["train-0"].bill_usd == pytest.approx(2 * 1.408 * rows["train-0"].billable_s / 3600)
    assert fleet_of(tmp_path, tags={"team": "nlp"}).totals.jobs == 2


@pytest.mark.parametrize("denied", ["place", "tags"])
def test_a_job_whose_files_are_denied_has_its_bill_and_its_failure(service, tmp_path, monkeypatch, denied):
    """It was a row without a status: a failed job was none, and the whole fleet took 0 hours."""
    describe, ask = Account.describe, getattr(Account, denied)
    ended = {"BillableTimeInSeconds": 3600, "TrainingTimeInSeconds": 3600}
    failed = {"TrainingJobStatus": "Failed", "FailureReason": "AlgorithmError: exit code 1"}

    def described(self, name):
        return describe(self, name) | ended | (failed if name == "train-1" else {})

    def asked(self, *arguments):
        if any("train-0" in str(text) or "train-1" in str(text) for text in arguments):
            raise SourceError("Access Denied")
        return ask(self, *arguments)

    monkeypatch.setattr(Account, "describe", described)
    monkeypatch.setattr(Account, denied, asked)
    fleet = fleet_of(tmp_path)
    rows = {job.name: job for job in fleet.jobs}
    for row in (rows["train-0"], rows["train-1"]):
        assert (row.error, row.billable_s, row.instance_type) == ("Access Denied", 3600, "ml.g5.xlarge")
        assert row.bill_usd == pytest.approx(2 * 1.408)
    assert (rows["train-0"].status, rows["train-1"].status) == ("Completed", "Failed")
    assert [(one.name, one.reason) for one in fleet.failures] == [("train-1", "AlgorithmError: exit code 1")]
    totals = fleet.totals
    assert (totals.jobs, totals.unreadable, totals.failed, totals.instance_hours) == (5, 2, 1, 10)
    assert totals.coverage == pytest.approx(1 / 5)  # the failure, and no job of unknown length
    assert "Judged: 20 % of" in summary(fleet)


def test_settled_jobs_are_not_described_again(service, tmp_path, monkeypatch):
    described = []
    original = candidates._load_described
    monkeypatch.setattr(
        candidates, "_load_described", lambda self, name, arn: described.append(name) or original(self, name, arn)
    )
    fleet_of(tmp_path)
    assert len(described) == 5
    later = 10 * 86400 + 4e9
    fleet_of(tmp_path, now=lambda: later)  # read long after their end: nothing is expected any more
    assert len(described) == 10
    described.clear()
    ended = [entry for entry in read_index(LocalStorage(tmp_path))[0].values() if entry.settled]
    fleet_of(tmp_path, now=lambda: later)
    assert len(described) == 5 - len(ended)
    assert ended


@pytest.fixture
def answers(monkeypatch):
    """Statuses and bodies with which SageMaker answers, the last of them again and again; pauses take no time."""
    monkeypatch.setattr(time, "sleep", lambda _: None)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    return []


def account_that_is_answered(answers):
    opened, sent = Account.open(REGION), []

    def answer(request, **_):
        sent.append(request)
        status, body = answers[min(len(sent), len(answers)) - 1]
        if isinstance(body, Exception):
            raise body
        return AWSResponse(request.url, status, {}, Raw(json.dumps(body).encode()))

    opened.sagemaker.meta.events.register("before-send.sagemaker", answer)
    return opened, sent


class Raw(io.BytesIO):
    """The body of an answer, as urllib3 has it."""

    def stream(self):
        yield self.read()


THROTTLED = 400, {"__type": "ThrottlingException", "message": "Rate exceeded"}
DESCRIBED = 200, {"TrainingJobName": "train"}


def test_throttled_requests_are_sent_again(answers):
    answers += [THROTTLED, THROTTLED, DESCRIBED]
    opened, sent = account_that_is_answered(answers)
    assert opened.describe("train") == {"TrainingJobName": "train"}
    assert len(sent) == 3


@pytest.mark.long
def test_a_service_that_only_throttles_is_one_line(answers):
    answers.append(THROTTLED)
    opened, sent = account_that_is_answered(answers)
    with pytest.raises(SourceError, match="Rate exceeded"):
        list(opened.jobs())
    assert len(sent) == ATTEMPTS


def test_a_service_that_cannot_be_reached_is_one_line(answers):
    answers.append((0, EndpointConnectionError(endpoint_url="http://127.0.0.1:1")))
    opened, sent = account_that_is_answered(answers)
    with pytest.raises(SourceError, match="Could not connect"):
        opened.describe("train")
    assert len(sent) == ATTEMPTS


def test_other_errors_are_not_repeated(answers):
    answers.append((400, {"__type": "AccessDeniedException", "message": "not\nallowed"}))
    opened, sent = account_that_is_answered(answers)
    with pytest.raises(SourceError, match=r"^not allowed$"):
        opened.tags("arn:aws:sagemaker:us-east-1:1:training-job/train")
    assert len(sent) == 1


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (EndpointConnectionError(endpoint_url="https://x"), "Could not connect"),
        (ClientError({"Error": {"Code": "InternalFailure", "Message": "KeyError('us-east-9')"}}, "ListTrainingJobs"), "KeyError"),
    ],
    ids=["no answer", "an answer"],
)  # fmt: skip
def test_a_region_that_does_not_exist_is_named(error, text, monkeypatch, tmp_path, capsys):
    class Client:
        class meta:  # as boto3 names it
            region_name = "us-east-9"

        def get_paginator(self, _operation):
            raise error

    monkeypatch.setattr(account, "create_client", lambda *_, **__: Client())
    assert main(["fleet", "account:us-east-9", "--out", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("sm-profiler: unknown region us-east-9: did you mean us-east-1 or us-east-2?")
    assert text in said
    assert said.count("\n") == 1
    assert unknown_region("cn-north-1") == ""


def test_an_account_without_jobs_is_named(service, tmp_path, capsys):
    assert main(["fleet", "account:eu-west-1", "--since", "2d", "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr()
    assert "No jobs were found." in shown.out
    assert (
        "there are no jobs in account:eu-west-1. To do: check the names: a job's folder contains system/, framework/ or a report.json, the region, --since"
        in shown.err
    )


def test_a_job_that_cannot_be_described_is_a_row(service, tmp_path, monkeypatch):
    original = candidates._load_described

    def load(self, name, arn):
        if name == "train-3":
            raise SourceError("access denied")
        return original(self, name, arn)

    monkeypatch.setattr(candidates, "_load_described", load)
    fleet = fleet_of(tmp_path)
    assert [(job.name, job.error) for job in fleet.jobs if job.error] == [("train-3", "access denied")]
    assert fleet.totals.jobs == 5


def test_the_prefix_of_a_bucket(service, tmp_path):
    fleet = build_fleet([f"s3://{BUCKET}/out"], index=LocalStorage(tmp_path), progress=False)
    assert sorted(job.name for job in fleet.jobs) == ["train-0", "train-1"]
    assert {job.judged for job in fleet.jobs} == {"report"}


def test_the_files_of_a_profile_that_has_ended_are_not_all_listed(service, monkeypatch):
    s3 = boto3.client("s3", REGION)
    monkeypatch.setattr(listing, "SKIP_AFTER", 3)
    files = [f"framework/pevents/2026110100/{n}_0-algo-1_pythontimeline.json" for n in range(9)]
    for job, marker in (("ended", "framework/training_job_end.ts"), ("running", "x")):
        for key in (*files, marker):
            s3.put_object(Bucket=BUCKET, Key=f"many/{job}/profiler-output/{key}", Body=b"[]")
    s3.put_object(Bucket=BUCKET, Key="many/zebra/report.json", Body=b"{}")
    found = {place.name: place for place in listing.find_places(open_storage(f"s3://{BUCKET}/many")).places}
    assert sorted(found) == ["ended", "running", "zebra"]
    assert (found["ended"].files, found["running"].files) == (3, 9)
