"""Failures end the job as Failed with a reason, in bounded time, and leave no process behind."""

import contextlib
import json
import os
import signal
from pathlib import Path

import pytest
from botocore.exceptions import ClientError


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_failure_reason_is_that_of_the_training_toolkit(bench):
    """It quoted the last lines that the script had printed."""
    job = bench.run("import sys\nprint('epoch 3: loss 0.1')\nsys.exit(7)\n")
    assert (job["TrainingJobStatus"], job["SecondaryStatus"]) == ("Failed", "Failed")
    start, _, command = job["FailureReason"].partition('Command "')
    assert start == 'AlgorithmError: ExecuteUserScriptError:\nExitCode 7\nErrorMessage ""\n'
    assert command.endswith('train.py", exit code: 1')


def test_failure_reason_quotes_the_output_from_the_first_error_on(bench):
    job = bench.run("print('epoch 3: loss 0.1')\nraise ValueError('no such column')\n")
    quoted = "\"raise ValueError('no such column')\n ValueError: no such column\""
    assert f"\nExitCode 1\nErrorMessage {quoted}\nCommand " in job["FailureReason"]


def test_failure_reason_of_a_container_without_a_failure_file_is_its_exit_code(bench):
    request = bench.request("")
    algorithm = {**request["AlgorithmSpecification"], "ContainerEntrypoint": ["/bin/sh", "-c", "echo on fire; exit 7"]}
    bench.sagemaker.create_training_job(**{**request, "AlgorithmSpecification": algorithm})
    assert bench.wait(request["TrainingJobName"])["FailureReason"] == "AlgorithmError: , exit code: 7"


def test_failure_reason_is_the_failure_file(bench):
    script = """
import os
from pathlib import Path
Path(os.environ["SM_OUTPUT_DIR"], "failure").write_text("no such column: price")
raise SystemExit(1)
"""
    job = bench.run(script)
    assert job["FailureReason"] == "AlgorithmError: no such column: price, exit code: 1"


def test_failure_reason_is_truncated_to_the_api_limit(bench):
    job = bench.run("raise ValueError('x' * 5000)")
    assert len(job["FailureReason"]) == 1024


def test_failure_reason_names_the_signal(bench):
    job = bench.run("import os\nos.kill(os.getpid(), 9)\n")
    assert "ExitCode -9" in job["FailureReason"]


def test_missing_source_code_fails_the_job(bench):
    request = bench.request("")
    request["HyperParameters"]["sagemaker_submit_directory"] = f'"s3://{bench.local.bucket}/nowhere/sourcedir.tar.gz"'
    bench.sagemaker.create_training_job(**request)
    job = bench.wait(request["TrainingJobName"])
    assert "No S3 objects found" in job["FailureReason"]


@pytest.mark.first(1)
@pytest.mark.parametrize("name", ["sourcedir.tar.gz", "../../../../../../etc/hostname", "other.tar.gz"])
def test_jobs_without_a_network_get_their_code_in_a_channel(bench, name):
    """As SDK v2 sends it with enable_network_isolation."""
    request = bench.request("print('from the channel')", EnableNetworkIsolation=True)
    source = json.loads(request["HyperParameters"]["sagemaker_submit_directory"])
    request["HyperParameters"]["sagemaker_submit_directory"] = json.dumps(f"/opt/ml/input/data/code/{name}")
    s3 = {"S3DataType": "S3Prefix", "S3Uri": source, "S3DataDistributionType": "FullyReplicated"}
    request["InputDataConfig"] = [{"ChannelName": "code", "DataSource": {"S3DataSource": s3}}]
    bench.sagemaker.create_training_job(**request)
    job = bench.wait(request["TrainingJobName"])
    if name == "sourcedir.tar.gz":
        assert job["TrainingJobStatus"] == "Completed", job.get("FailureReason")
        assert "from the channel" in bench.lines(request["TrainingJobName"])
    else:
        assert "no input channel contains" in job["FailureReason"]


def test_source_code_must_be_an_archive(bench):
    bench.s3.put_object(Bucket=bench.local.bucket, Key="broken/sourcedir.tar.gz", Body=b"not a tar file")
    request = bench.request("")
    request["HyperParameters"]["sagemaker_submit_directory"] = f'"s3://{bench.local.bucket}/broken/sourcedir.tar.gz"'
    bench.sagemaker.create_training_job(**request)
    assert "cannot unpack" in bench.wait(request["TrainingJobName"])["FailureReason"]


def test_archive_members_cannot_leave_the_folder(bench, tmp_path):
    job = bench.run("", files={"../../../outside.py": "print(1)"})
    assert job["TrainingJobStatus"] == "Failed"
    assert "cannot unpack" in job["FailureReason"]


def test_program_must_be_in_the_source_code(bench):
    job = bench.run("", hyperparameters={"sagemaker_program": '"other.py"'})
    assert "has no file other.py" in job["FailureReason"]


def test_image_without_a_script_fails_the_job(bench):
    request = bench.request("")
    del request["HyperParameters"]
    bench.sagemaker.create_training_job(**request)
    assert "nothing to run" in bench.wait(request["TrainingJobName"])["FailureReason"]


def test_missing_profile_bucket_does_not_fail_the_training(bench):
    job = bench.run("print(1)", ProfilerConfig={"S3OutputPath": "s3://there-is-no-such-bucket/x"})
    assert job["TrainingJobStatus"] == "Completed"
    lines = bench.lines(job["TrainingJobName"])
    assert any("could not be uploaded" in line for line in lines)
    retries = [line for line in lines if "retrying: s3://there-is-no-such-bucket/x/" in line]
    assert len(retries) == 1
    assert "the bucket does not exist" in retries[0]


def test_a_monitor_that_ends_during_the_job_is_reported_and_restarted(bench):
    name = bench.start(
        "import time\nprint('ready', flush=True)\ntime.sleep(60)\n",
        ProfilerConfig={"S3OutputPath": f"s3://{bench.local.bucket}/restarted"},
    )
    bench.wait_for_line(name, "ready")

    def monitor() -> int | None:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = path.read_bytes().split(b"\0")
                if words[1:4] == [b"-m", b"sm_profiler", b"monitor"] and f"/{name}/".encode() in b" ".join(words):
                    return int(path.parent.name)
        return None

    first = bench.until(monitor, bool)
    os.kill(first, signal.SIGKILL)
    bench.wait_for_line(name, "system metrics of algo-1 ended with exit code 137 (SIGKILL); restarting them")
    assert bench.until(monitor, lambda found: found and found != first)
    bench.sagemaker.stop_training_job(TrainingJobName=name)
    bench.wait(name)


def test_a_missing_profile_bucket_is_reported_at_once(bench):
    name = bench.start(
        "import time\ntime.sleep(60)\n", ProfilerConfig={"S3OutputPath": "s3://there-is-no-such-bucket/x"}
    )
    bench.wait_for_line(name, "the bucket does not exist")
    job = bench.describe(name)
    assert (job["TrainingJobStatus"], job["ProfilingStatus"]) == ("InProgress", "Disabled")
    bench.sagemaker.stop_training_job(TrainingJobName=name)
    bench.wait(name)


def test_missing_model_bucket_fails_the_job(bench):
    job = bench.run("print(1)", OutputDataConfig={"S3OutputPath": "s3://there-is-no-such-bucket/x"})
    assert job["TrainingJobStatus"] == "Failed"
    assert "there-is-no-such-bucket" in job["FailureReason"]


def test_too_many_hosts_are_refused(bench):
    job = bench.run("", ResourceConfig={"InstanceType": "ml.m5.large", "InstanceCount": 100, "VolumeSizeInGB": 1})
    assert "at most 8" in job["FailureReason"]


def test_failing_host_ends_the_others(bench):
    script = "import os, sys, time\nos.environ['SM_CURRENT_HOST'] == 'algo-2' and sys.exit(5)\ntime.sleep(100)\n"
    resources = {"InstanceType": "ml.m5.large", "InstanceCount": 2, "VolumeSizeInGB": 1}
    job = bench.run(script, ResourceConfig=resources)
    assert "\nExitCode 5\n" in job["FailureReason"]


def test_runtime_limit_stops_the_job(bench):
    job = bench.run("import time\ntime.sleep(100)\n", StoppingCondition={"MaxRuntimeInSeconds": 1})
    assert (job["TrainingJobStatus"], job["SecondaryStatus"]) == ("Stopped", "MaxRuntimeExceeded")


# one write per line: three processes share the pipe
FAMILY = """
import os, signal, subprocess, sys, time
report = "os.write(1, b'pid %d\\\\n' % os.getpid())"
child = f"import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); {report}; time.sleep(1000)"
subprocess.Popen([sys.executable, "-c", child])
subprocess.Popen([sys.executable, "-c", child], start_new_session=True)  # has left the process group
os.write(1, b"pid %d\\n" % os.getpid())
time.sleep(END)
"""


def pids_of(bench, name):
    lines = bench.until(lambda: bench.lines(name), lambda lines: sum(line.startswith("pid ") for line in lines) == 3)
    return [int(line.split()[1]) for line in lines if line.startswith("pid ")]


def test_stop_leaves_no_process_behind(bench):
    name = bench.start(FAMILY.replace("END", "1000"))
    pids = pids_of(bench, name)
    assert all(alive(pid) for pid in pids)
    bench.sagemaker.stop_training_job(TrainingJobName=name)
    job = bench.wait(name)
    assert (job["TrainingJobStatus"], job["SecondaryStatus"]) == ("Stopped", "Stopped")
    assert [entry["Status"] for entry in job["SecondaryStatusTransitions"]][-3:] == ["Stopping", "Uploading", "Stopped"]
    assert not [pid for pid in pids if alive(pid)]


def test_script_that_ends_leaves_no_process_behind(bench):
    name = bench.start(FAMILY.replace("END", "1"))
    assert bench.wait(name)["TrainingJobStatus"] == "Completed"
    assert not [pid for pid in pids_of(bench, name) if alive(pid)]


def test_stopping_an_ended_job_is_refused(bench):
    job = bench.run("print(1)")
    with pytest.raises(ClientError, match=r"ValidationException.*Completed"):
        bench.sagemaker.stop_training_job(TrainingJobName=job["TrainingJobName"])


def test_unknown_job_is_refused_as_the_service_does(bench):
    for call in (bench.sagemaker.describe_training_job, bench.sagemaker.stop_training_job):
        with pytest.raises(ClientError, match=r"\(ValidationException\).*Requested resource not found"):
            call(TrainingJobName="never-was")


def test_job_names_are_unique(bench):
    request = bench.request("print(1)")
    bench.sagemaker.create_training_job(**request)
    with pytest.raises(bench.sagemaker.exceptions.ResourceInUse):
        bench.sagemaker.create_training_job(**request)
    bench.wait(request["TrainingJobName"])


def test_unsupported_calls_are_answered(bench):
    with pytest.raises(ClientError, match="does not support"):
        bench.sagemaker.list_algorithms()
