"""The hook in a job: a ModelTrainer with a profile, and a profile changed while the job runs."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

DATA = Path(__file__).parents[1] / "data" / "local"
LOOP = """
import os, time
from pathlib import Path
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
config = Path(os.environ["SM_INPUT_CONFIG_DIR"], "profilerconfig.json")
before = config.read_text()
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=4)
left, end = 40, time.monotonic() + 60
while left and time.monotonic() < end:
    for (batch,) in loader:
        optimizer.zero_grad()
        model(batch).pow(2).mean().backward()
        optimizer.step()
        time.sleep(0.02)
    print("ready", flush=True)
    if config.read_text() != before:
        left -= 10
"""


def trace_phases(bench, prefix):
    """Return the names of phases and other processes in all trace files."""
    names = set()
    for key in bench.keys(prefix):
        if key.endswith("pythontimeline.json"):
            for event in json.loads(bench.s3.get_object(Bucket=bench.local.bucket, Key=key)["Body"].read()):
                if event["ph"] == "M" and event["name"] == "process_name":
                    names.add(event["args"].get("name"))
    return names


@pytest.mark.long
def test_a_window_added_while_the_job_runs_is_recorded(bench):
    def config(window):
        parameters = {"LocalPath": "/opt/ml/output/profiler", "DataloaderProfilingConfig": window}
        return {"S3OutputPath": f"s3://{bench.local.bucket}/window", "ProfilingParameters": parameters}

    never = '{"StartStep": 1000000, "NumSteps": 1, }'
    names = []
    for change in (False, True):
        name = bench.start(LOOP, ProfilerConfig=config(never), Environment={"SM_PROFILER_AUTO": "1"})
        bench.wait_for_line(name, "ready")
        if change:
            window = f'{{"StartTimeInSecSinceEpoch": {int(time.time())}, "Duration": 60, }}'
        else:
            window = '{"StartStep": 1000001, "NumSteps": 1, }'
        bench.sagemaker.update_training_job(TrainingJobName=name, ProfilerConfig=config(window))
        job = bench.wait(name)
        assert job["TrainingJobStatus"] == "Completed", job["FailureReason"]
        names.append(trace_phases(bench, f"window/{name}/profiler-output/framework"))
    assert {"Step:ModeKeys.TRAIN", "Forward"} <= names[0] & names[1]
    assert "DataLoaderIter" not in names[0]
    assert "DataLoaderIter" in names[1]


@pytest.mark.long
@pytest.mark.slow
def test_framework_metrics_are_switched_on_in_a_job_that_began_without(bench):
    config = {"S3OutputPath": f"s3://{bench.local.bucket}/later", "ProfilingIntervalInMilliseconds": 1000}
    longer = LOOP.replace("left -= 10", "left -= 1")  # the hook looks every other second while it is off
    name = bench.start(longer, ProfilerConfig=config, Environment={"SM_PROFILER_AUTO": "1"})
    bench.wait_for_line(name, "ready")
    window = f'{{"StartTimeInSecSinceEpoch": {int(time.time())}, "Duration": 60, }}'
    parameters = {"LocalPath": "/opt/ml/output/profiler", "DataloaderProfilingConfig": window}
    bench.sagemaker.update_training_job(
        TrainingJobName=name, ProfilerConfig={**config, "ProfilingParameters": parameters}
    )
    job = bench.wait(name)
    assert job["TrainingJobStatus"] == "Completed", job["FailureReason"]
    assert {"Step:ModeKeys.TRAIN", "Forward"} <= trace_phases(bench, f"later/{name}/profiler-output/framework")


@pytest.mark.first(1)
@pytest.mark.parametrize("asked", [None, "1", "0"])
def test_the_log_has_a_line_if_the_endpoint_switches_the_hook_on(bench, asked):
    """On SageMaker, a configuration alone does not."""
    script = LOOP.replace("left, end = 40", "left, end = 10").replace("if config.read_text() != before:", "if True:")
    parameters = {"LocalPath": "/opt/ml/output/profiler"}
    config = {"S3OutputPath": f"s3://{bench.local.bucket}/alone", "ProfilingParameters": parameters}
    more = {"Environment": {"SM_PROFILER_AUTO": asked}} if asked else {}
    job = bench.run(script, ProfilerConfig=config, **more)
    name = job["TrainingJobName"]
    assert job["Environment"]["SM_PROFILER_AUTO"] == (asked or "1")  # reports read it there: the hook was off, they had
    assert ("Step:ModeKeys.TRAIN" in trace_phases(bench, f"alone/{name}/")) == (asked != "0")
    lines = [line for line in bench.lines(name) if "add SM_PROFILER_AUTO=1 to the job's environment" in line]
    assert len(lines) == (asked is None)


@pytest.mark.long
@pytest.mark.sdk3
@pytest.mark.parametrize("backend", ["service", "agent"])
def test_model_trainer_with_an_attached_profile(bench, repository, tmp_path, backend):
    python = repository / ".envs" / "sdk3" / "bin" / "python"
    if not python.exists():
        assert "CI" not in os.environ, "CI must have .envs/sdk3"
        pytest.skip("no .envs/sdk3")
    command = [str(python), str(DATA / "v3_attach.py"), bench.local.bucket, str(repository / "examples/demo"), backend]
    environment = {**os.environ, **bench.local.environment, "PYTHONPATH": str(repository)}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    name = run.stdout.split()[-1]
    job = bench.describe(name)
    assert ("ProfilerConfig" in job) == (backend == "service")
    prefix = f"attached-{backend}/{name}/profiler-output"
    assert {"Step:ModeKeys.TRAIN", "Forward", "DataLoaderIter"} <= trace_phases(bench, f"{prefix}/framework")
    assert any("/system/incremental/" in key for key in bench.keys(prefix))
    assert f"{prefix}/framework/training_job_end.ts" in bench.keys(prefix)
