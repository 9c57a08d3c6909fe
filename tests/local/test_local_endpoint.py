"""`sm-profiler local` as a process: output, exit, and the end of its jobs with it."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import boto3
import pytest

from sm_profiler.errors import ProfilerError
from sm_profiler.local import LocalSageMaker, supervisor
from sm_profiler.local.supervisor import JobProcess

SLEEPER = "import time; time.sleep(1000)"


def pids_with(mark: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def exports(text: str) -> dict[str, str]:
    words = [line.removeprefix("export ").partition("=") for line in text.splitlines() if line.startswith("export ")]
    return {name: shlex.split(value)[0] if value else "" for name, _, value in words}


@pytest.fixture
def endpoint(tmp_path):
    """A running `sm-profiler local --env`, and the environment that it printed."""
    command = [sys.executable, "-m", "sm_profiler", "local", "--env", "--port", "0", "--folder", str(tmp_path / "jobs")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        printed = ""
        while "SAGEMAKER_VALIDATE_ROLE" not in printed:
            line = process.stdout.readline()
            assert line, "the endpoint ended"
            printed += line
        yield process, printed
        if process.poll() is None:
            process.kill()
        process.wait()


def start_sleeper(environment: dict[str, str], mark: str) -> None:
    client = boto3.client(
        "sagemaker", endpoint_url=environment["AWS_ENDPOINT_URL"], region_name=environment["AWS_REGION"],
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"], aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
    )  # fmt: skip
    client.create_training_job(
        TrainingJobName="sleeper",
        RoleArn="arn:aws:iam::123456789012:role/x",
        AlgorithmSpecification={
            "TrainingImage": "x", "TrainingInputMode": "File", "ContainerEntrypoint": ["python3", "-c", SLEEPER],
        },
        OutputDataConfig={"S3OutputPath": "s3://sagemaker-us-east-1-123456789012/o"},
        ResourceConfig={"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1},
        StoppingCondition={"MaxRuntimeInSeconds": 100},
        Environment={"MARK": mark},
        ProfilerConfig={"S3OutputPath": "s3://sagemaker-us-east-1-123456789012/o"},
    )  # fmt: skip
    end = time.monotonic() + 30
    while not pids_with(f"MARK={mark}"):
        assert time.monotonic() < end
        time.sleep(0.1)


def wait_until_gone(mark: str) -> list[int]:
    end = time.monotonic() + 25
    while (left := pids_with(mark)) and time.monotonic() < end:
        time.sleep(0.1)
    return left


def test_env_prints_export_lines_only(endpoint):
    _, printed = endpoint
    assert all(line.startswith("export ") for line in printed.splitlines())
    found = exports(printed)
    assert found["AWS_ENDPOINT_URL"].startswith("http://127.0.0.1:")
    assert found["SAGEMAKER_VALIDATE_ROLE"] == "false"
    settings = Path(found["SAGEMAKER_USER_CONFIG_OVERRIDE"]).read_text()
    assert "TelemetryOptOut: true" in settings
    assert "DefaultS3Bucket: sagemaker-us-east-1-123456789012" in settings


def test_env_of_a_running_endpoint_returns_at_once(endpoint):
    _, printed = endpoint
    port = exports(printed)["AWS_ENDPOINT_URL"].rpartition(":")[2]
    command = [sys.executable, "-m", "sm_profiler", "local", "--env", "--port", port]
    again = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert exports(again.stdout) == exports(printed)


def test_port_in_use_is_one_line_and_exit_code_2(endpoint):
    _, printed = endpoint
    port = exports(printed)["AWS_ENDPOINT_URL"].rpartition(":")[2]
    command = [sys.executable, "-m", "sm_profiler", "local", "--port", port]
    again = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert again.returncode == 2
    assert again.stderr.count("\n") == 1
    assert f"port {port}" in again.stderr


def test_two_endpoints_are_independent(tmp_path):
    with LocalSageMaker() as one, LocalSageMaker() as two:
        one.client("s3").put_object(Bucket=one.bucket, Key="a", Body=b"")
        assert "Contents" not in two.client("s3").list_objects_v2(Bucket=two.bucket)
        folders = [one.folder, two.folder]
        port = int(one.url.rpartition(":")[2])
        with pytest.raises(ProfilerError, match=f"port {port}"):
            LocalSageMaker(port=port).start()
    assert not [folder for folder in folders if folder.exists()]
    with pytest.raises(ProfilerError, match="not running"):
        one.client("s3")


def test_endpoint_ends_with_the_process_that_started_it(tmp_path):
    code = (
        "import os, sys\nfrom sm_profiler.local import LocalSageMaker\nlocal = LocalSageMaker().start()\n"
        "print(local.folder, flush=True)\nos.kill(os.getpid(), 9)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path), "ENDPOINT_MARK": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert run.stdout.startswith(str(tmp_path)), run.stderr
    assert not wait_until_gone(f"ENDPOINT_MARK={tmp_path}")
    assert not Path(run.stdout.strip()).exists()


@pytest.mark.first(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ending_the_endpoint_ends_its_jobs(endpoint, number, tmp_path):
    process, printed = endpoint
    mark = f"MARK={tmp_path}"
    start_sleeper(exports(printed), str(tmp_path))
    process.send_signal(number)
    assert process.wait(40) == 0
    assert not pids_with(mark)
    assert not pids_with(f"SM_PROFILER_ROOT={tmp_path}")


def test_killing_the_endpoint_ends_its_jobs_too(endpoint, tmp_path):
    process, printed = endpoint
    mark = f"MARK={tmp_path}"
    start_sleeper(exports(printed), str(tmp_path))
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not wait_until_gone(mark)
    assert not wait_until_gone(f"SM_PROFILER_ROOT={tmp_path}")


SUPERVISOR_ENDED_WHILE_ITS_COMMAND_STARTS = """
import os, signal, sys, time
sys.path.insert(0, sys.argv[1])
import supervisor
prctl = supervisor.prctl
def slow_prctl(option, value):
    if value == signal.SIGKILL:  # the command's process, between fork and exec
        os.kill(os.getppid(), int(sys.argv[2]))
        time.sleep(0.3)
    prctl(option, value)
supervisor.prctl = slow_prctl
sys.exit(supervisor.main(["5", sys.executable, "-c", sys.argv[3]]))
"""


@pytest.mark.first(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_command_outlives_a_supervisor_that_is_ended_while_the_command_starts(number, tmp_path):
    words = [
        sys.executable,
        "-c",
        SUPERVISOR_ENDED_WHILE_ITS_COMMAND_STARTS,
        str(Path(supervisor.__file__).parent),
        str(int(number)),
        SLEEPER,
    ]
    environment = {**os.environ, "SUPERVISOR_MARK": str(tmp_path)}
    with subprocess.Popen(words, env=environment, stdin=subprocess.PIPE) as process:
        code = process.wait(20)
        assert not wait_until_gone(f"SUPERVISOR_MARK={tmp_path}")
    assert code == (128 + signal.SIGTERM if number == signal.SIGTERM else -signal.SIGKILL)


UPLOADER = """
import signal, sys, time
def end(*_):
    time.sleep(0.5)
    open(sys.argv[1], "a").write("uploaded ")
    sys.exit()
signal.signal(signal.SIGTERM, end)
open(sys.argv[1] + ".ready", "w").close()
time.sleep(60)
"""
SCRIPT_WITH_UPLOADER = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]], start_new_session=sys.argv[3] == "own")
time.sleep(60)
"""


@pytest.mark.first(1)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="descendants are found in /proc")
@pytest.mark.parametrize("session", ["own", "shared"])
def test_what_a_stopped_script_leaves_behind_may_end_its_work(session, tmp_path):
    """A container outlives its script; the monitor of a stopped job was killed with it, and the last minute lost."""
    words = [sys.executable, supervisor.__file__, "20", sys.executable, "-c", SCRIPT_WITH_UPLOADER, UPLOADER]
    with subprocess.Popen([*words, str(tmp_path / "notes"), session], stdin=subprocess.PIPE) as process:
        limit = time.monotonic() + 30
        while not (tmp_path / "notes.ready").exists():
            assert time.monotonic() < limit
            time.sleep(0.02)
        process.terminate()
        assert process.wait(20) == 128 + signal.SIGTERM
    assert (tmp_path / "notes").read_text() == "uploaded "  # once: one signal each


def test_a_process_outlives_the_thread_that_started_it(tmp_path):
    """An update's request restarts the machine metrics from a thread that ends with its connection."""
    started = []

    def start():
        environment = {"PATH": "/usr/bin:/bin"}
        started.append(JobProcess([sys.executable, "-c", SLEEPER], environment, tmp_path, lambda _line: None, 1.0))
        time.sleep(1.0)  # until the supervisor runs

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    try:
        assert started[0].wait(1.0) is None
    finally:
        started[0].stop()
        started[0].wait()


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"port": 99999}, "port 99999"), ({"port": -1}, "port -1"), ({"folder": "/dev/null/x"}, "/dev/null")],
)
def test_endpoint_that_cannot_start_raises_one_line(options, reason):
    with pytest.raises(ProfilerError, match=reason) as caught:
        LocalSageMaker(**options).start()
    assert "\n" not in str(caught.value)
