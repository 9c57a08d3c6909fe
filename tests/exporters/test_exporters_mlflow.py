"""A job in a real MLflow server."""

import json
import os
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from sm_profiler.local.training import free_port
from tests.support.jobs import make_job

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".envs" / "mlflow" / "bin" / "python"
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not PYTHON.exists(), reason="MLflow's environment is missing: make .envs/mlflow.done"),
]
QUESTIONS = """
import json, sys
from mlflow import MlflowClient
client = MlflowClient(sys.argv[1])
experiment = client.get_experiment_by_name("sm-profiler")
runs = client.search_runs([experiment.experiment_id])
run = runs[0]
history = client.get_metric_history(run.info.run_id, "system/cpu_utilization_percentage")
print(json.dumps({
    "runs": len(runs), "name": run.info.run_name, "tags": run.data.tags, "metrics": run.data.metrics, "status": run.info.status,
    "files": [file.path for file in client.list_artifacts(run.info.run_id, "sm-profiler")], "points": len(history),
}))
"""


@pytest.fixture
def server(tmp_path):
    """The address of a server that keeps its data in a folder of the test."""
    port = free_port()
    command = [PYTHON, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += [
        "--backend-store-uri",
        f"sqlite:///{tmp_path}/runs.db",
        "--artifacts-destination",
        str(tmp_path / "artifacts"),
    ]
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + 240
            while True:
                try:
                    urllib.request.urlopen(f"{url}/health", timeout=5).close()  # noqa: S310 - this machine's
                    break
                except OSError:
                    assert process.poll() is None, "the server has ended"
                    assert time.monotonic() < until, "the server does not answer"
                    time.sleep(0.5)
            yield url
        finally:
            process.terminate()


def test_a_job_is_one_run_with_verdict_series_and_report(server, tmp_path):
    job = make_job(
        tmp_path / "my-job" / "profiler-output", "--scenario", "dataloader-slow", "--minutes", "2", "--no-end-marker",
        "--start-epoch", str(int(time.time()) - 120),
    )  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [PYTHON, "-m", "sm_profiler", "export", str(job), "--to", f"mlflow:{server}"]
    for is_over in (False, True):
        if is_over:
            for folder in ("system", "framework"):
                (job / folder / "training_job_end.ts").touch()
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "and the report to run" in done.stdout
        asked = subprocess.run([PYTHON, "-c", QUESTIONS, server], capture_output=True, text=True, check=True)
        found = json.loads(asked.stdout)
        assert (found["runs"], found["name"]) == (1, "my-job")
        assert found["status"] == ("FINISHED" if is_over else "RUNNING")
    assert found["tags"]["sm_profiler.verdict"] == "INPUT_BOUND"
    assert "sm-profiler/profiler-report.html" in found["files"]
    assert found["points"] > 10
    assert any(name.endswith("/step_time_ms") for name in found["metrics"])


def test_a_server_that_is_gone_is_one_line(tmp_path):
    job = make_job(tmp_path / "job", "--scenario", "cpu-only", "--minutes", "1")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    command = [PYTHON, "-m", "sm_profiler", "export", str(job), "--to", f"mlflow:http://127.0.0.1:{free_port()}"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("sm-profiler: MLflow: ")
    assert "Traceback" not in done.stderr
