"""A training job really runs, in a container's surroundings, and its results are where clients expect them."""

import json

import pytest

from tests.support.local import SHOW, output_of


@pytest.fixture(scope="module")
def shown(bench):
    """One job, and the surroundings that its script recorded."""
    local = bench.local
    bench.s3.put_object(Bucket=local.bucket, Key="data/train/part/a.csv", Body=b"1,2")
    channel = {
        "ChannelName": "train",
        "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": f"s3://{local.bucket}/data/train"}},
        "ContentType": "text/csv",
    }
    profiler = {"S3OutputPath": f"s3://{local.bucket}/profiles", "ProfilingIntervalInMilliseconds": 500}
    job = bench.run(
        SHOW,
        hyperparameters={"learning-rate": "0.1", "name": '"adam"', "layers": "[1, 2]", "b": "true"},
        InputDataConfig=[channel],
        Environment={"MINE": "/opt/ml/model/x", "OTHER": "1"},
        RetryStrategy={"MaximumRetryAttempts": 1},
        AlgorithmSpecification={
            "TrainingImage": "image",
            "TrainingInputMode": "File",
            "MetricDefinitions": [{"Name": "loss", "Regex": "loss: ([0-9.]+)"}],
        },
        ProfilerConfig=profiler,
        Tags=[{"Key": "team", "Value": "a"}],
    )
    return bench, job, json.loads(output_of(bench, job)["found.json"]), profiler


def test_completes_with_all_times_and_transitions(shown):
    _, job, _, _ = shown
    assert (job["TrainingJobStatus"], job["SecondaryStatus"]) == ("Completed", "Completed")
    states = [entry["Status"] for entry in job["SecondaryStatusTransitions"]]
    assert states == ["Starting", "Downloading", "Training", "Uploading", "Completed"]
    assert all(entry["StartTime"] <= entry["EndTime"] for entry in job["SecondaryStatusTransitions"])
    assert job["CreationTime"] <= job["TrainingStartTime"] <= job["TrainingEndTime"] <= job["LastModifiedTime"]
    assert job["TrainingTimeInSeconds"] >= 1


def test_describe_gives_back_what_moto_drops(shown):
    _, job, _, profiler = shown
    assert job["ProfilerConfig"] == profiler
    assert job["ProfilingStatus"] == "Enabled"
    assert job["Environment"] == {"MINE": "/opt/ml/model/x", "OTHER": "1", "SM_PROFILER_AUTO": "1"}  # which it added
    assert job["RetryStrategy"] == {"MaximumRetryAttempts": 1}
    assert job["AlgorithmSpecification"]["MetricDefinitions"] == [{"Name": "loss", "Regex": "loss: ([0-9.]+)"}]
    assert job["FinalMetricDataList"][0]["Value"] == 0.5


def test_hyperparameters_arrive_as_arguments(shown):
    _, _, found, _ = shown
    assert found["arguments"] == ["-b", "True", "--layers", "[1, 2]", "--learning-rate", "0.1", "--name", "adam"]
    assert json.loads(found["environment"]["SM_HPS"])["name"] == "adam"
    assert found["environment"]["SM_HP_LEARNING-RATE"] == "0.1"


def test_environment_is_built_not_inherited(shown):
    _, _, found, _ = shown
    environment = found["environment"]
    assert "PYTEST_CURRENT_TEST" not in environment
    root = environment["SM_PROFILER_ROOT"]
    inside = ("HOME", "SM_MODEL_DIR", "SM_INPUT_DIR", "SM_OUTPUT_DATA_DIR", "SM_CHANNEL_TRAIN")
    assert all(environment[name].startswith(root.removesuffix("/ml")) for name in inside)
    assert environment["MINE"] == f"{root}/model/x"
    assert environment["SM_PROFILER_AUTO"] == "1"
    assert json.loads(environment["SM_HOSTS"]) == ["algo-1"]
    assert environment["SM_CHANNELS"] == '["train"]'
    assert found["folder"] == f"{root}/code"
    assert environment["SM_MODULE_DIR"].startswith("s3://")  # as AWS's toolkit sets it


def test_config_files_are_those_of_the_request(shown):
    _, job, found, profiler = shown
    config = found["config"]
    assert config["profilerconfig"] == profiler
    assert config["hyperparameters"] == job["HyperParameters"]
    assert config["resourceconfig"]["hosts"] == ["algo-1"]
    assert config["inputdataconfig"]["train"] == {
        "ContentType": "text/csv", "RecordWrapperType": "None", "S3DistributionType": "FullyReplicated", "TrainingInputMode": "File",
    }  # fmt: skip


def test_model_and_log_lines_are_where_clients_expect_them(shown):
    bench, job, _, _ = shown
    assert bench.archive(job["ModelArtifacts"]["S3ModelArtifacts"]) == {"model.bin": b"weights"}
    assert [line for line in bench.lines(job["TrainingJobName"]) if "loss" in line or "first" in line] == [
        "first line", "loss: 0.75", "loss: 0.5",
    ]  # fmt: skip


def test_jobs_can_be_listed_searched_and_tagged(shown):
    bench, job, _, _ = shown
    name = job["TrainingJobName"]
    found = bench.sagemaker.list_training_jobs(NameContains=name)["TrainingJobSummaries"]
    assert [entry["TrainingJobStatus"] for entry in found] == ["Completed"]
    assert bench.sagemaker.list_tags(ResourceArn=job["TrainingJobArn"])["Tags"] == [{"Key": "team", "Value": "a"}]
    search = {"Filters": [{"Name": "TrainingJobName", "Operator": "Equals", "Value": name}]}
    results = bench.sagemaker.search(Resource="TrainingJob", SearchExpression=search)["Results"]
    assert results[0]["TrainingJob"]["TrainingJobStatus"] == "Completed"


def test_profile_reaches_s3_with_end_markers(shown):
    bench, job, _, _ = shown
    keys = bench.keys(f"profiles/{job['TrainingJobName']}/profiler-output/")
    assert {key.rpartition("profiler-output/")[2] for key in keys} >= {
        "system/training_job_end.ts", "framework/training_job_end.ts",
    }  # fmt: skip
    assert not [key for key in keys if key.endswith(".tmp")]


def test_files_are_uploaded_while_the_job_runs(bench):
    script = """
import os, time
from pathlib import Path
folder = Path(os.environ["SM_PROFILER_ROOT"], "output/profiler/framework/pevents/2026010100")
folder.mkdir(parents=True)
(folder / "1_1-algo-1_pythontimeline.json").write_text("[]")
(folder / "2_1-algo-1_pythontimeline.json.tmp").write_text("[")
(folder.parents[2] / ".sagemaker-ignore").mkdir()
(folder.parents[2] / ".sagemaker-ignore" / "x").write_text("")
time.sleep(60)
"""
    name = bench.start(script, ProfilerConfig={"S3OutputPath": f"s3://{bench.local.bucket}/while"})
    prefix = f"while/{name}/profiler-output/framework"
    keys = bench.until(lambda: bench.keys(prefix), bool)
    assert keys == [f"{prefix}/pevents/2026010100/1_1-algo-1_pythontimeline.json"]
    assert bench.describe(name)["TrainingJobStatus"] == "InProgress"
    bench.sagemaker.stop_training_job(TrainingJobName=name)
    bench.wait(name)


def test_several_hosts_each_have_their_own_folder(bench):
    script = """
import json, os, socket, sys, time
from pathlib import Path
host, hosts = os.environ["SM_CURRENT_HOST"], json.loads(os.environ["SM_HOSTS"])
config = json.loads(Path(os.environ["SM_INPUT_CONFIG_DIR"], "resourceconfig.json").read_text())
assert config["current_host"] == host, config
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if host == "algo-1":
    server = socket.create_server(address)
    server.accept()[0].sendall(b"hello")
else:
    for _ in range(100):
        try:
            assert socket.create_connection(address).recv(5) == b"hello"
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
    else:
        sys.exit(3)
Path(os.environ["SM_MODEL_DIR"], host).write_text(host)
"""
    resources = {"InstanceType": "ml.m5.large", "InstanceCount": 2, "VolumeSizeInGB": 1}
    job = bench.run(script, ResourceConfig=resources)
    assert job["TrainingJobStatus"] == "Completed", job.get("FailureReason")
    assert set(bench.archive(job["ModelArtifacts"]["S3ModelArtifacts"])) == {"algo-1", "algo-2"}


def test_checkpoints_are_restored_and_saved(bench):
    script = """
import os
from pathlib import Path
folder = Path(os.environ["SM_PROFILER_ROOT"], "checkpoints")
steps = sum(1 for _ in folder.iterdir())
(folder / f"step-{steps}").write_text("")
"""
    config = {"S3Uri": f"s3://{bench.local.bucket}/checkpoints"}
    for _ in range(2):
        assert bench.run(script, CheckpointConfig=config)["TrainingJobStatus"] == "Completed"
    assert bench.keys("checkpoints") == ["checkpoints/step-0", "checkpoints/step-1"]


def test_unix_sockets_of_multiprocessing_fit_under_a_long_job_name(bench):
    """Loader workers pass tensors through sockets below TMPDIR, whose paths are limited to 107 characters."""
    script = """
from multiprocessing.connection import Listener
with Listener(family="AF_UNIX") as listener:
    print("listens at", listener.address)
"""
    request = bench.request(script, TrainingJobName="a-name-as-long-as-the-service-allows-it-which-is-63-characters1")
    bench.sagemaker.create_training_job(**request)
    job = bench.wait(request["TrainingJobName"])
    assert job["TrainingJobStatus"] == "Completed", job["FailureReason"]
