"""The jobs of the endpoint as a fleet."""

import json

from sm_profiler.cli.main import main


def test_jobs_of_the_endpoint(local, bench, tmp_path, monkeypatch, capsys):
    for name, value in local.environment.items():
        monkeypatch.setenv(name, value)
    good = bench.run("print(1)", Tags=[{"Key": "team", "Value": "fleet"}])
    bad = bench.run("raise SystemExit(3)", Tags=[{"Key": "team", "Value": "fleet"}])
    assert main(["fleet", "account:us-east-1", "--tag", "team=fleet", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("2 jobs")
    fleet = json.loads((tmp_path / "fleet.json").read_text())
    rows = {job["name"]: job for job in fleet["jobs"]}
    assert set(rows) == {good["TrainingJobName"], bad["TrainingJobName"]}
    assert rows[good["TrainingJobName"]]["status"] == "Completed"
    assert rows[good["TrainingJobName"]]["instance_type"] == "ml.m5.large"
    assert [one["name"] for one in fleet["failures"]] == [bad["TrainingJobName"]]
    assert fleet["failures"][0]["reason"]


def test_report_by_name_has_the_reason_that_there_is_no_profile(local, bench, monkeypatch, capsys):
    for name, value in local.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(local.folder)
    plain = bench.run("print(1)")["TrainingJobName"]
    carried = {"SM_PROFILER_AUTO": "1", "SM_PROFILER_CONFIG": json.dumps({"S3OutputPath": f"s3://{local.bucket}/own"})}
    lost = bench.run("print('sm-profiler: uploads are off: no boto3')", Environment=carried)["TrainingJobName"]
    for job, reason in ((plain, "the profiler was not switched on"), (lost, "uploads are off: no boto3")):
        assert main(["report", job]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert reason in line
    default = bench.describe(lost)["OutputDataConfig"]["S3OutputPath"].rstrip("/")
    assert f"Looked in s3://{local.bucket}/own/{lost}/profiler-output and {default}/{lost}/profiler-output" in line
