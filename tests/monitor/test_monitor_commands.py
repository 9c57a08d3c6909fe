"""`sm-profiler monitor` and the machine's part of `sm-profiler run`."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

MARKERS = ["framework/training_job_end.ts", "system/training_job_end.ts"]


def command(*words, **more):
    return subprocess.Popen(
        [sys.executable, "-m", "sm_profiler", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


def keys(s3):
    return sorted(item["Key"] for item in s3.list_objects_v2(Bucket="profiles").get("Contents", ()))


def rows(folder):
    return [json.loads(line) for path in folder.rglob("*.algo-1.json") for line in path.read_text().splitlines()]


@pytest.mark.first(1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_monitor_samples_and_uploads_until_a_signal(tmp_path, s3, number):
    monitor = command("monitor", "--out", tmp_path, "--interval-ms", 100, "--upload", "s3://profiles/x/profiler-output")
    assert monitor.stdout.readline().startswith("sampling algo-1 every 100 ms")
    time.sleep(1)
    again = command("monitor", "--out", tmp_path)
    assert "already sampling" in again.communicate(timeout=60)[0]
    assert again.returncode == 1
    monitor.send_signal(number)
    said, errors = monitor.communicate(timeout=60)
    assert (monitor.returncode, errors) == (0, "")
    assert re.search(
        r"^(1 file|2 files) uploaded to s3://profiles/x/profiler-output$", said, re.MULTILINE
    )  # a minute may have ended
    assert len(rows(tmp_path)) > 20
    assert {key.rpartition("/")[0].rpartition("/")[0] for key in keys(s3)} == {"x/profiler-output/system/incremental"}


def test_monitor_ends_with_the_process_it_watches(tmp_path):
    watched = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    monitor = command("monitor", "--out", tmp_path, "--interval-ms", 200, "--pid", watched.pid)
    monitor.stdout.readline()
    watched.kill()
    watched.communicate()
    assert "samples" in monitor.communicate(timeout=60)[0]
    assert rows(tmp_path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--interval-ms", 99], "--interval-ms 99: must be between 100 and 60000"),
        (["--pid", 2**22 + 1], "no such process"),
        (["--upload", "/tmp/x"], "not an s3:// URI"),
    ],
)
def test_monitor_errors_are_one_line(tmp_path, words, said):
    monitor = command("monitor", "--out", tmp_path, *words)
    errors = monitor.communicate(timeout=60)[1]
    assert monitor.returncode == 2
    assert said in errors
    assert errors.count("\n") == 1


def profile(tmp_path, **config):
    parameters = {"LocalPath": str(tmp_path / "profile")}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"ProfilingIntervalInMilliseconds": 100, "ProfilingParameters": parameters, **config}))
    return path


def run(tmp_path, script, *words, **config):
    (tmp_path / "train.py").write_text(script)
    return command("run", "--config", profile(tmp_path, **config), *words, "train.py", cwd=tmp_path)


def test_run_samples_the_machine_and_writes_end_markers(tmp_path):
    process = run(tmp_path, "import time; time.sleep(1)")
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert {row["Type"] for row in rows(tmp_path)} >= {"cpu", "memory", "network"}
    assert all((tmp_path / "profile" / marker).exists() for marker in MARKERS)


@pytest.mark.first(1)
@pytest.mark.parametrize("sample", [True, False], ids=["monitor", "no monitor"])
def test_run_uploads_to_the_configured_path(tmp_path, s3, sample):
    process = run(tmp_path, "print('hello')", *([] if sample else ["--no-monitor"]), S3OutputPath="s3://profiles/out")
    said, errors = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "hello\n")
    job = errors.partition("uploading to s3://profiles/out/")[2].partition("/")[0]
    assert job.startswith("train-")
    names = [key.removeprefix(f"out/{job}/profiler-output/") for key in keys(s3)]
    assert set(MARKERS) <= set(names)
    assert bool([name for name in names if name.startswith("system/incremental")]) is sample


def test_run_without_sampling_and_uploads_starts_no_monitor(tmp_path):
    process = run(tmp_path, "", "--no-monitor")
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert not (tmp_path / "profile/.sagemaker-ignore").exists()
    assert all((tmp_path / "profile" / marker).exists() for marker in MARKERS)


def test_a_terminated_run_keeps_its_samples_and_writes_no_end_markers(tmp_path, s3):
    process = run(tmp_path, "import time; print('on', flush=True); time.sleep(60)", S3OutputPath="s3://profiles/out")
    assert process.stdout.readline() == "on\n"
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert {key.rpartition(".")[2] for key in keys(s3)} == {"json"}
    assert not any((tmp_path / "profile" / marker).exists() for marker in MARKERS)
