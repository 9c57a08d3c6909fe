"""Jobs of an account as a source, and the fleet's page of all that is served."""

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import boto3
import pytest
from moto import mock_aws
from starlette.testclient import TestClient

from sm_profiler.cli.main import main
from sm_profiler.cli.serve import name_job
from sm_profiler.fleet.finding import safe_sentence
from sm_profiler.fleet.model import FleetJob
from sm_profiler.jobs.finding import Job
from sm_profiler.processes import start_time
from sm_profiler.report.report_json import read_failure
from sm_profiler.serve.app import create_app, target_of
from sm_profiler.serve.fleet_page import FleetPage, address_of, pages_of, policy_of
from sm_profiler.serve.jobs import Found, Jobs, Verdicts
from sm_profiler.serve.listing import row_of
from sm_profiler.serve.live import LiveJob
from sm_profiler.serve.logs import LogTail
from sm_profiler.serve.reading import JobReader, JobStatus
from sm_profiler.serve.snapshot import Snapshot
from sm_profiler.serve.terminal import line_of
from tests.support.serving import data_files, end, make_job, until

REGION, BUCKET = "eu-central-1", "jobs"
REPORT = b'{"verdict": {"class": "INPUT_BOUND", "headline": "It waits <b>for data</b>."}}'


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = make_job(tmp_path_factory.mktemp("account") / "job", "--minutes", "2", "--scenario", "dataloader-slow")
    end(folder)
    return folder


@pytest.fixture
def account(monkeypatch, job):
    """Moto's SageMaker in a region that no variable names, with two jobs; one has a profile and a report."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    with mock_aws():
        sagemaker, s3 = boto3.client("sagemaker", REGION), boto3.client("s3", REGION)
        s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})
        for name in ("first", "second"):
            sagemaker.create_training_job(
                TrainingJobName=name,
                AlgorithmSpecification={"TrainingImage": "1.dkr.ecr/train:7", "TrainingInputMode": "File"},
                RoleArn="arn:aws:iam::1:role/x",
                OutputDataConfig={"S3OutputPath": f"s3://{BUCKET}/out"},
                ResourceConfig={"InstanceType": "ml.g5.xlarge", "InstanceCount": 1, "VolumeSizeInGB": 1},
                StoppingCondition={"MaxRuntimeInSeconds": 60},
            )
        key = "out/first/rule-output/ProfilerReport/profiler-output/report.json"
        s3.put_object(Bucket=BUCKET, Key=key, Body=REPORT)
        for path in [*data_files(job), *job.rglob("*.ts")]:
            s3.put_object(
                Bucket=BUCKET, Key=f"out/first/profiler-output/{path.relative_to(job)}", Body=path.read_bytes()
            )
        yield


def test_lists_the_jobs_of_an_account_and_their_verdicts(account):
    jobs = Jobs([f"account:{REGION}"], clock=iter(range(0, 10**6, 100)).__next__)
    found = {one.name: one for one in jobs.listing()}
    assert found.keys() == {"first", "second"}
    assert found["first"].where == f"account:{REGION}/first"
    assert found["first"].state in {"running", "ended"}
    if found["first"].state == "ended":
        until(lambda: next(one for one in jobs.listing() if one.name == "first").saved)
        browser = TestClient(create_app(jobs), base_url="http://127.0.0.1:8899")
        answer = browser.get("/")
        assert "Waiting for data" in answer.text
        assert "&lt;b&gt;for data" in answer.text
    assert jobs.problems == []
    jobs.close()


def test_reads_a_job_of_an_account_in_its_region(account):
    reader = JobReader(f"account:{REGION}/first")
    assert reader.read()
    assert reader.report().verdict.main.kind.name == "INPUT_BOUND"
    assert reader.over


NO_PROFILE = "training job second has no profile: the profiler was not switched on"


@pytest.fixture
def ended(account, monkeypatch):
    """The second job has ended without a profile, and the first with one."""
    monkeypatch.setenv("AWS_REGION", REGION)


def test_a_job_that_has_ended_without_a_profile_is_not_waited_for(ended, capsys):
    """It was "waiting for the first data" for ever."""
    assert main(["watch", "second"]) == 2
    assert NO_PROFILE in capsys.readouterr().err
    assert main(["report", "second", "--follow"]) == 2
    assert NO_PROFILE in capsys.readouterr().err
    live = LiveJob("second")
    live.poll()
    assert line_of(live.snapshot).startswith(f"ended: {NO_PROFILE}")
    browser = TestClient(create_app(Jobs(["second"])), base_url="http://127.0.0.1:8899")
    browser.get(f"/jobs/{Found('second', 'second').id}")
    page = until(
        lambda: text if NO_PROFILE in (text := browser.get(f"/jobs/{Found('second', 'second').id}").text) else ""
    )
    assert "cannot be read, trying" not in page
    assert "No data has been read yet" not in page


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("first", "serving training job first until Ctrl-C"),  # it was "there is no folder first; waiting for it"
        ("second", NO_PROFILE),
        ("third", "there is no folder third; waiting for it, or for a training job of that name, until Ctrl-C"),
    ],
)
def test_serve_names_what_a_job_lacks(ended, capsys, name, said):
    name_job(name)
    assert capsys.readouterr().err.startswith(f"sm-profiler: {said}")


def test_a_job_that_runs_is_waited_for(ended, monkeypatch):
    monkeypatch.setattr("sm_profiler.config.launched.Launched.may_store_profile", True)
    live = LiveJob("second")
    live.poll()
    assert line_of(live.snapshot) == "waiting for the first data"


@pytest.fixture
def described(ended, monkeypatch):
    """The answer of DescribeTrainingJob for the first job, which has written no end marker."""
    answer = {"TrainingJobStatus": "InProgress", "OutputDataConfig": {"S3OutputPath": f"s3://{BUCKET}/out"}}
    s3 = boto3.client("s3", REGION)
    for part in ("system", "framework"):
        s3.delete_object(Bucket=BUCKET, Key=f"out/first/profiler-output/{part}/training_job_end.ts")
    for module in ("source.job", "serve.reading"):
        monkeypatch.setattr(f"sm_profiler.{module}.describe", lambda *_, **__: dict(answer))
    return answer


@pytest.mark.parametrize("where", ["first", f"account:{REGION}/first", f"s3://{BUCKET}/out/first"])
@pytest.mark.parametrize(
    ("status", "line"), [("Stopped", "stopped"), ("Failed", "failed: no memory"), ("Completed", "completed")]
)
def test_the_account_decides_that_a_job_is_over(described, monkeypatch, where, status, line):
    """A job that is stopped or fails may write no end marker: it was shown as running for ever."""
    monkeypatch.setattr("sm_profiler.serve.reading.ASKED_S", 0.0)
    live = LiveJob(where)
    live.poll()
    assert live.snapshot.state == "running"
    described |= {"TrainingJobStatus": status, "FailureReason": "no  memory" if status == "Failed" else ""}
    live.poll()
    assert live.snapshot.state == "ended"
    assert line_of(live.snapshot).startswith(f"{line};")


def test_follow_ends_with_the_job(described, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("sm_profiler.serve.reading.ASKED_S", 0.0)
    monkeypatch.setattr("sm_profiler.cli.report.REMOTE_POLL_S", 0.0)
    answers = iter(["InProgress", "InProgress", "Stopped"])
    for module in ("source.job", "serve.reading"):
        monkeypatch.setattr(
            f"sm_profiler.{module}.describe",
            lambda *_, **__: {**described, "TrainingJobStatus": next(answers, "Stopped")},
        )
    assert main(["report", "first", "--follow", "--out", str(tmp_path / "report")]) == 0
    printed = capsys.readouterr()
    assert "first: the run was stopped" in printed.err
    assert "The job was stopped after" in printed.out


def test_the_account_is_asked_once_a_minute():
    now, asked = [0.0], []
    status = JobStatus("first", clock=lambda: now[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "sm_profiler.serve.reading.describe",
            lambda *_, **__: asked.append(now[0]) or {"TrainingJobStatus": "InProgress"},
        )
        for now[0] in range(0, 200, 10):
            status.ask()
    assert asked == [0, 60, 120, 180]


def test_the_list_shows_how_jobs_ended():
    found = Found("a", f"account:{REGION}/a", state="ended", status="failed")
    assert row_of(found, None).line == "failed"
    assert row_of(found, Snapshot(), being_read=True).line == "failed; it is being read"
    over = Snapshot(version=2, state="ended", note="training job a has no profile: the profiler was off")
    assert row_of(found, over).line == f"failed: {over.note}"
    assert row_of(found, Snapshot(version=2, state="ended", note="failed: no memory")).line == "failed: no memory"


def test_the_list_leads_with_the_exception_of_a_job_that_failed():
    """It showed "Waiting for data, failed", while fleet and report lead with the exception."""
    end = {
        "state": "crashed",
        "exit_code": 1,
        "error": "ValueError: corrupt record",
        "where": "train.py:41",
        "step": 120,
    }
    report = json.dumps({**json.loads(REPORT), "end": end}).encode()
    verdicts, job = Verdicts(), Job("first", "first", state="ended", read_report=lambda: report)
    known = verdicts.known(job)
    found = Found("first", "first", state="ended", status="failed", saved=known.verdict, end=known.end)
    assert "ValueError: corrupt record (train.py:41)" in row_of(found, None).headline.partition("It waits")[0]
    live = Snapshot(version=2, state="ended", main=known.verdict, end="The job ended with exit code 1.")
    assert row_of(found, live).headline.startswith("The job ended with exit code 1. It waits")
    assert read_failure(REPORT) == ""


def test_the_list_shows_why_a_job_that_ended_has_no_profile(account):
    """It showed "completed" alone until the job was opened."""
    jobs = Jobs([f"account:{REGION}"], clock=iter(range(0, 10**6, 100)).__next__)
    second = until(lambda: next((one for one in jobs.listing() if one.name == "second" and one.problem), None))
    assert "the profiler was not switched on" in row_of(second, None).line
    assert row_of(second, Snapshot()).line.startswith("completed: ")
    jobs.close()


def test_a_job_that_cannot_be_read_costs_its_own_verdict_only():
    def read(name):
        if name == "first":
            raise AttributeError("a client that stumbles over an answer")
        return REPORT

    jobs = [
        Job(name, f"account:{REGION}/{name}", state="ended", read_report=partial(read, name))
        for name in ("first", "second")
    ]
    verdicts = Verdicts()
    until(lambda: [one for one in jobs if verdicts.of(one)])
    verdicts.close()
    assert [verdicts.of(one) is not None for one in jobs] == [False, True]


def test_log_and_windows_are_those_of_its_region():
    where = f"account:{REGION}/first"
    assert (LogTail.of(where).job, LogTail.of(where).region) == ("first", REGION)
    assert (target_of(where, "first").name, target_of(where, "first").region) == ("first", REGION)


def test_an_account_that_cannot_be_listed_is_a_problem_not_an_error(monkeypatch):
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    jobs = Jobs(["account:no such region"])
    assert jobs.listing() == []
    assert len(jobs.problems) == 1


def test_the_fleet_has_a_page(tmp_path, job):
    for name in ("a", "<img src=x>"):
        copy(job, tmp_path / "jobs" / name)
    browser = TestClient(create_app(Jobs([str(tmp_path / "jobs")])), base_url="http://127.0.0.1:8899")
    assert 'href="fleet"' in browser.get("/").text
    first = browser.get("/fleet")
    assert first.status_code == 202
    assert 'id="again"' in first.text
    assert browser.get("/fleet.json").status_code == 404
    answer = until(lambda: one if (one := browser.get("/fleet")).status_code != 202 else None, 200)
    assert answer.status_code == 200, answer.text
    assert "2 jobs" in answer.text
    assert '<a href="fleet.json">' in answer.text  # it named a file that did not exist
    assert browser.get("/fleet.json").json()["totals"]["jobs"] == 2
    pages = re.findall(r'<a href="(jobs/[^"]*)"', answer.text)
    assert len(set(pages)) == 2
    for page in pages:
        assert browser.get(f"/{page}").status_code == 200
    assert '<a href="./">All jobs</a>' in answer.text
    assert '<a aria-current="page">Cost and lost time</a>' in answer.text
    assert "<img src=x" not in answer.text
    assert answer.headers["content-security-policy"] == f"{policy_of(answer.text)}; frame-ancestors 'self'"
    assert "script-src 'sha256-" in policy_of(answer.text)


@pytest.mark.parametrize(
    ("where", "row"),
    [
        ("/data/runs/a", {"source": "/data/runs/a/profiler-output"}),
        ("/data/runs/../runs/a/profiler-output", {"source": "/data/runs/a/profiler-output"}),
        ("/data/a\u202e\x07", {"source": safe_sentence("/data/a\u202e\x07")}),
        ("s3://jobs/out/a", {"source": "s3://jobs/out/a/profiler-output"}),
        ("s3://jobs/all/job=a%20b", {"source": "s3://jobs/all/job=a%20b"}),
        (f"account:{REGION}/a", {"arn": f"arn:aws:sagemaker:{REGION}:1:training-job/a"}),
    ],
)
def test_a_row_of_the_fleet_leads_to_the_page_of_its_job(where, row):
    found = Found("a", where)
    assert address_of(FleetJob("a", **row), pages_of([found])) == f"jobs/{found.id}"
    assert address_of(FleetJob("b", source=row.get("source", "") + "2"), pages_of([found])) == ""
    assert address_of(FleetJob("b", report="https://reports.example/b"), {}).startswith("https://reports.example/b/")
    assert address_of(FleetJob("b", report="/data/b"), {}) == ""


def test_an_error_of_the_fleet_is_one_line():
    fleet = FleetPage(["account:no such region"])
    try:
        fleet.page()
        page, error = until(lambda: found if (found := fleet.page())[1] else None, 100)
    finally:
        fleet.close()
    assert page == ""
    assert len(error.splitlines()) == 1


def test_the_page_of_the_fleet_ends_with_a_server_that_is_stopped(tmp_path, job):
    """It went on after SIGTERM, and its files stayed."""
    for number in range(40):  # which take seconds
        copy(job, tmp_path / "jobs" / f"job-{number}")
    (scratch := tmp_path / "scratch").mkdir()
    command = [sys.executable, "-m", "sm_profiler", "serve", str(tmp_path / "jobs"), "--port", "0"]
    environment = {**os.environ, "TMPDIR": str(scratch)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment) as server:
        try:
            address = server.stdout.readline().decode().strip()
            urlopen(address, timeout=200).close()  # noqa: S310 - the list, which begins the page
            (process,) = until(lambda: children_of(server.pid, "sm_profiler.serve.fleet_page"), 200)
            server.terminate()
            assert server.wait(200) == 0
        finally:
            server.kill()
    assert not start_time(process)
    assert not list(scratch.iterdir())


def children_of(pid, module):
    """Return the numbers of a process's children that run a module."""
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    every = [*listed.parents[1].glob("*/children")]
    found = [int(number) for path in every for number in path.read_text().split()]
    return [one for one in found if module.encode() in Path(f"/proc/{one}/cmdline").read_bytes().split(b"\0")]


@pytest.mark.parametrize("source", ["list", "gone"])
def test_the_list_of_the_scheduler_completes_the_jobs(tmp_path, job, source):
    for name in ("slurm-7", "slurm-8"):
        copy(job, tmp_path / "jobs" / name)
    listed = tmp_path / "sacct.txt"
    listed.write_text(
        "JobIDRaw|JobName|User|State|Elapsed\n7|bert|anna|NODE_FAIL|00:02:00\n9|gone|ben|FAILED|01:00:00\n"
    )
    assert main(["serve", str(tmp_path / "jobs"), "--jobs", str(tmp_path / "none")]) == 2
    jobs = Jobs([str(tmp_path / "jobs")], listed=str(listed if source == "list" else tmp_path / "none"))
    browser = TestClient(create_app(jobs, surveys=True), base_url="http://127.0.0.1:8899")
    try:
        if source == "gone":
            until(lambda: "Users, machines and costs cannot be read: " in browser.get("/").text, 200)
            return
        row = until(lambda: text if "NODE_FAIL" in (text := browser.get("/list?user=anna").text) else "", 200)
        assert re.search(r">slurm-7 \(bert\)</a>.*failed</span>.*Slurm&#39;s state: NODE_FAIL", row, re.DOTALL)
        assert "slurm-8" not in row
        (address,) = re.findall(r'href="(jobs/slurm-7[^"]*)"', row)
        until(lambda: "failed: Slurm&#39;s state: NODE_FAIL" in browser.get(f"/{address}").text)
        assert ">gone<" in browser.get("/fleet").text.replace("slurm-9 (gone)", ">gone<")
    finally:
        jobs.close()


def test_making_the_page_of_the_fleet_ends():
    program = (
        "import sys, time, sm_profiler.serve.fleet_page as page\n"
        "page.make = lambda *_: time.sleep(600)\n"
        "sys.argv = ['page', '/', sys.argv[1], '', '/']\n"
        "page.main()\n"
    )
    for limit_s in (1, 600):  # or with its server
        command, pipe = [sys.executable, "-c", program, str(limit_s)], subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stderr=pipe, text=True) as process:
            if limit_s > 1:
                process.stdin.close()
            assert process.wait(200) == 1
            assert "takes too long" in process.stderr.read()


def copy(job, to):
    for path in [*data_files(job), *job.rglob("*.ts")]:
        target = to / path.relative_to(job)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
