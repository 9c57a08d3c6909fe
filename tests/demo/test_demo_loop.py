"""The demo: SDK v2's Estimator on the endpoint, without network, leaving no process behind."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
GUARD = REPOSITORY / "tests" / "data" / "local" / "network_guard.py"
DRIVER = """
import sys
from pathlib import Path
from sm_profiler.local import supervisor
from sm_profiler.local.demo_run import Demo
from sm_profiler.local.server import Endpoint

guard, launch, out = sys.argv[1:]
start = supervisor.JobProcess.__init__

def watched(self, command, environment, *more, **named):
    import os
    path = guard + os.pathsep + environment.get("PYTHONPATH", "")
    environment = {**environment, "PYTHONPATH": path, "NETWORK_GUARD_LOG": os.environ["NETWORK_GUARD_LOG"]}
    start(self, command, environment, *more, **named)

supervisor.JobProcess.__init__ = watched  # jobs, monitors and rules do not inherit variables
with Endpoint() as local:
    demo = Demo(local, Path(out), lambda line: print(line, flush=True), Path(launch))
    print("\\n".join(demo.summary(demo.run())))
"""


def pids_with(mark: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.sdk2
def test_demo_finds_the_planted_problem_without_network(tmp_path):
    for name in ("train.py", "photos.py", "launch.py"):
        shutil.copy(REPOSITORY / "examples" / "demo" / name, tmp_path)
    launch = tmp_path / "launch.py"
    text = launch.read_text()
    shorter = text.replace('"batch-size": 32', '"batch-size": 32, "images": 2400')
    assert shorter != text
    launch.write_text(shorter)
    (tmp_path / "guard").mkdir()
    shutil.copy(GUARD, tmp_path / "guard" / "sitecustomize.py")
    log = tmp_path / "network.log"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "guard"), "NETWORK_GUARD_LOG": str(log)}
    out = tmp_path / "out"
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "guard"), str(launch), str(out)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert not log.exists(), log.read_text()
    for step in ("[1/4]", "[2/4]", "[3/4]", "[4/4]", "rule job ProfilerReport: InProgress", "loss: "):
        assert step in run.stdout
    report = json.loads((out / "report.json").read_text())
    assert report["verdict"]["class"] == "INPUT_BOUND"
    assert (out / "profiler-report.html").stat().st_size > 10_000
    assert "verdict  INPUT_BOUND" in run.stdout
    assert "in augment: photo = photo.rotate(" in run.stdout
    assert "gain     after the repair, the loop runs " in run.stdout
    assert f"sm-profiler serve {out}" in run.stdout
    assert (out / "profiler-output" / "system" / "training_job_end.ts").exists()
    assert f"s3://sagemaker-us-east-1-123456789012/{report_job(run.stdout)}/rule-output/ProfilerReport" in run.stdout


FRAMEWORKS = REPOSITORY / ".envs" / "frameworks" / "bin" / "python"


@pytest.mark.long
@pytest.mark.sdk2
@pytest.mark.skipif(not FRAMEWORKS.exists(), reason="needs the environment `frameworks`: make .envs/frameworks.done")
def test_the_tensorflow_estimator_runs_a_keras_job_end_to_end(tmp_path):
    environment = {**os.environ, "SM_PROFILER_LOCAL_PYTHON": str(FRAMEWORKS)}
    command = [sys.executable, "-m", "sm_profiler", "demo", "--framework", "keras", "--out", str(tmp_path)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=290, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["verdict"]["class"] == "INPUT_BOUND"
    assert "PyDataset" in run.stdout


def report_job(text: str) -> str:
    line = next(line for line in text.splitlines() if line.startswith("job "))
    return line.split()[1].rstrip(":")


def test_network_guard_detects_an_attempt(tmp_path):
    """Proves that the test above can fail."""
    shutil.copy(GUARD, tmp_path / "sitecustomize.py")
    log = tmp_path / "log"
    environment = {"PYTHONPATH": str(tmp_path), "NETWORK_GUARD_LOG": str(log)}
    code = "import socket\ntry: socket.create_connection(('192.0.2.1', 80), 1)\nexcept OSError: pass"
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=30)
    assert "192.0.2.1" in log.read_text()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.sdk2
def test_interrupting_the_demo_leaves_no_process_behind(tmp_path):
    mark = f"DEMO_MARK={tmp_path}"
    environment = {**os.environ, "DEMO_MARK": str(tmp_path), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "sm_profiler", "demo", "--out", str(tmp_path / "out")]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as demo:
        seen = ""
        while "Training" not in seen:
            line = demo.stdout.readline()
            assert line, seen
            seen += line
        jobs = f"SM_PROFILER_ROOT={tmp_path}"  # the job's processes do not inherit the mark
        assert pids_with(jobs)
        demo.send_signal(signal.SIGINT)
        rest = demo.stdout.read()
        assert demo.wait(40) == 130, seen + rest
    assert "Traceback" not in seen + rest
    end = time.monotonic() + 10
    while (left := pids_with(jobs) + pids_with(mark)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not left
    assert not list(tmp_path.glob("sm-profiler-local-*"))


def test_missing_sdk_is_one_line(monkeypatch):
    from sm_profiler.errors import ProfilerError
    from sm_profiler.local import demo_run

    monkeypatch.setattr(demo_run, "NEEDED", {"no_such_module_here": "sm-profiler[sagemaker2]"})
    with pytest.raises(ProfilerError, match="pip install"):
        demo_run.check_packages()
    monkeypatch.setattr(demo_run, "NEEDED", {})
    monkeypatch.setattr(demo_run, "version", lambda _: "3.27.0")
    with pytest.raises(ProfilerError, match="version 2"):
        demo_run.check_packages()
