"""Jobs whose machines are taken away: spot instances, RetryStrategy, and neither."""

import json

import pytest

from sm_profiler.errors import ProfilerError
from sm_profiler.report import build_report, terminal_summary
from sm_profiler.report.report_json import to_json
from sm_profiler.source import open_source

# Saves every ten steps, for more than the millisecond from which a save is an event of its own; waits to be interrupted after 35, and goes on where the checkpoint is.
TRAINING = """
import os, time
from pathlib import Path
import torch
from torch.utils.data import DataLoader, TensorDataset
torch.set_num_threads(1)
saved = Path(os.environ["SM_PROFILER_ROOT"], "checkpoints", "state.pt")
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
first = 0
if saved.exists():
    state = torch.load(saved)
    model.load_state_dict(state["model"])
    first = state["step"]
print("from step", first, flush=True)
for step, (batch,) in enumerate(DataLoader(TensorDataset(torch.randn(60 - first, 8)), batch_size=1), first + 1):
    optimizer.zero_grad()
    model(batch).pow(2).mean().backward()
    optimizer.step()
    if step % 10 == 0:
        torch.save({"model": model.state_dict(), "step": step, "large": torch.zeros(8_000_000)}, saved)
    if step == 35 and not first:
        print("waiting", flush=True)
        time.sleep(600)
    time.sleep(0.01)
"""
WAITING = "import time\nprint('waiting', flush=True)\ntime.sleep(600)\n"


def interrupt(bench, name, times=1):
    for count in range(1, times + 1):
        bench.until(lambda: bench.lines(name), lambda lines, count=count: lines.count("waiting") == count, 120)
        bench.local.interrupt(name)


def recorded(host):
    """Return the number of steps in the complete files of a host."""
    found = 0
    for path in host.glob("ml/output/profiler/framework/pevents/*/*.json"):
        events = json.loads(path.read_text())
        rows = {one["pid"] for one in events if one["args"].get("name") == "Step:ModeKeys.TRAIN"}
        found += sum(one["ph"] == "X" and one["pid"] in rows for one in events)
    return found


def statuses(job):
    return [entry["Status"] for entry in job["SecondaryStatusTransitions"]]


@pytest.mark.long
def test_a_spot_job_resumes_from_its_checkpoint_and_its_profile_goes_on(bench, monkeypatch):
    name = bench.start(
        TRAINING,
        EnableManagedSpotTraining=True,
        StoppingCondition={"MaxRuntimeInSeconds": 240, "MaxWaitTimeInSeconds": 300},
        CheckpointConfig={"S3Uri": f"s3://{bench.local.bucket}/spot-checkpoints"},
        Environment={"SM_PROFILER_AUTO": "1"},
        ProfilerConfig={
            "S3OutputPath": f"s3://{bench.local.bucket}/spot",
            "ProfilingIntervalInMilliseconds": 100,
            "ProfilingParameters": {"LocalPath": "/opt/ml/output/profiler", "RotateFileCloseIntervalInSeconds": "1"},
        },
    )
    folder = bench.local.folder / "jobs" / "training" / name
    bench.until(lambda: recorded(folder / "algo-1"), lambda steps: steps == 34, 120)  # the 35th has not ended yet
    interrupt(bench, name)
    job = bench.wait(name, 120)
    assert job["TrainingJobStatus"] == "Completed", job.get("FailureReason")
    assert statuses(job) == [
        "Starting", "Downloading", "Training", "Interrupted", "Starting", "Downloading", "Training", "Uploading", "Completed"
    ]  # fmt: skip
    assert [line for line in bench.lines(name) if line.startswith("from")] == ["from step 0", "from step 30"]

    for variable, value in bench.local.environment.items():
        monkeypatch.setenv(variable, value)
    report = build_report(open_source(f"s3://{bench.local.bucket}/spot/{name}/profiler-output", cache=False))
    (rank,) = json.loads(to_json(report))["job"]["ranks"]
    assert (rank["attempts"], rank["train_steps"]) == (2, 34 + 30)
    assert json.loads(to_json(report))["job"]["interruptions"]["repeated_steps"] in (
        4,
        5,
    )  # an estimate, since the checkpoint is no step
    assert "interrupted once" in terminal_summary(report)


def test_a_job_with_a_retry_strategy_starts_again_and_fails_after_the_last_retry(bench):
    name = bench.start(WAITING, RetryStrategy={"MaximumRetryAttempts": 1})
    interrupt(bench, name, times=2)
    job = bench.wait(name)
    assert job["FailureReason"] == "InternalServerError: We encountered an internal error. Please try again."
    assert statuses(job).count("Restarting") == 1
    assert statuses(job)[-1] == "Failed"


def test_an_interrupted_job_fails_without_either(bench):
    name = bench.start(WAITING)
    interrupt(bench, name)
    assert bench.wait(name)["FailureReason"].startswith("InternalServerError")
    with pytest.raises(ProfilerError, match=f"no training job {name} is running"):
        bench.local.interrupt(name)


def test_an_attempt_that_was_interrupted_leaves_its_files(bench):
    name = bench.start("print('waiting', flush=True)\nimport time; time.sleep(600)\n", EnableManagedSpotTraining=True)
    interrupt(bench, name)
    bench.until(lambda: bench.lines(name), lambda lines: lines.count("waiting") == 2)
    folders = {path.name for path in (bench.local.folder / "jobs" / "training" / name).iterdir()}
    assert {"algo-1", "algo-1.attempt-1"} <= folders
    config = bench.local.folder / "jobs/training" / name / "algo-1/ml/input/config/resourceconfig.json"
    assert json.loads(config.read_text())["current_host"] == "algo-1"
    bench.sagemaker.stop_training_job(TrainingJobName=name)
    assert bench.wait(name)["TrainingJobStatus"] == "Stopped"
