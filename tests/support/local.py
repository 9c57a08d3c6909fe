"""Jobs on a local endpoint."""

import io
import json
import tarfile
import time
from typing import Any
from uuid import uuid4

from sm_profiler.local import LocalSageMaker

IMAGE = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.6.0-cpu-py312"
SHOW = """
import json, os, sys
from pathlib import Path
root = Path(os.environ["SM_PROFILER_ROOT"])
config = {path.stem: json.loads(path.read_text()) for path in (root / "input" / "config").glob("*.json")}
found = {"arguments": sys.argv[1:], "environment": dict(os.environ), "config": config, "folder": os.getcwd()}
Path(os.environ["SM_OUTPUT_DATA_DIR"], "found.json").write_text(json.dumps(found))
Path(os.environ["SM_MODEL_DIR"], "model.bin").write_bytes(b"weights")
print("first line")
print("loss: 0.75")
print("loss: 0.5")
"""
SCRIPT = """
import pathlib, time
import torch

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.randn(16), torch.tensor(index % 2)

torch.set_num_threads(1)
model = torch.nn.Linear(16, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
epoch = 0
while not pathlib.Path({stop!r}).exists():
    for inputs, labels in torch.utils.data.DataLoader(Slow(), batch_size=8):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
    epoch += 1
    print(f"epoch {{epoch}}: loss {{loss.item():.3f}}", flush=True)
print("done", flush=True)
"""


class Bench:
    """Shortcuts to an endpoint's services."""

    def __init__(self, local: LocalSageMaker) -> None:
        self.local = local
        self.sagemaker, self.s3, self.logs = (local.client(name) for name in ("sagemaker", "s3", "logs"))
        self.count = 0

    def upload_source(self, files: dict[str, str | bytes]) -> str:
        self.count += 1
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            for name, text in files.items():
                member = tarfile.TarInfo(name)
                content = text if isinstance(text, bytes) else text.encode()
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        key = f"sources/{uuid4().hex}/sourcedir.tar.gz"
        self.s3.put_object(Bucket=self.local.bucket, Key=key, Body=buffer.getvalue())
        return f"s3://{self.local.bucket}/{key}"

    def request(
        self, script: str, *, files: dict[str, str | bytes] | None = None, hyperparameters: Any = None, **more: Any
    ) -> Any:
        source = self.upload_source({"train.py": script, **(files or {})})
        return {
            "TrainingJobName": f"job-{self.count}",
            "RoleArn": self.local.role,
            "AlgorithmSpecification": {"TrainingImage": IMAGE, "TrainingInputMode": "File"},
            "HyperParameters": {
                "sagemaker_submit_directory": json.dumps(source),
                "sagemaker_program": json.dumps("train.py"),
                **(hyperparameters or {}),
            },
            "OutputDataConfig": {"S3OutputPath": f"s3://{self.local.bucket}/out"},
            "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1},
            "StoppingCondition": {"MaxRuntimeInSeconds": 120},
            **more,
        }

    def start(self, script: str, **more: Any) -> str:
        request = self.request(script, **more)
        self.sagemaker.create_training_job(**request)
        return request["TrainingJobName"]

    def run(self, script: str, **more: Any) -> dict[str, Any]:
        return self.wait(self.start(script, **more))

    def describe(self, name: str) -> dict[str, Any]:
        return self.sagemaker.describe_training_job(TrainingJobName=name)

    def wait(self, name: str, seconds: float = 60) -> dict[str, Any]:
        return self.until(
            lambda: self.describe(name),
            lambda job: job["TrainingJobStatus"] in ("Completed", "Failed", "Stopped"),
            seconds,
        )

    @staticmethod
    def until(ask: Any, done: Any, seconds: float = 60) -> Any:
        end = time.monotonic() + seconds
        while not done(found := ask()):
            assert time.monotonic() < end, found
            time.sleep(0.1)
        return found

    def wait_for_line(self, name: str, text: str) -> list[str]:
        return self.until(lambda: self.lines(name), lambda lines: any(text in line for line in lines))

    def lines(self, name: str, group: str = "/aws/sagemaker/TrainingJobs") -> list[str]:
        try:
            streams = self.logs.describe_log_streams(logGroupName=group, logStreamNamePrefix=f"{name}/")["logStreams"]
        except self.logs.exceptions.ResourceNotFoundException:
            return []
        return [
            event["message"]
            for stream in streams
            for event in self.logs.get_log_events(
                logGroupName=group, logStreamName=stream["logStreamName"], startFromHead=True
            )["events"]
        ]

    def keys(self, prefix: str = "") -> list[str]:
        found = self.s3.list_objects_v2(Bucket=self.local.bucket, Prefix=prefix)
        return [entry["Key"] for entry in found.get("Contents", ())]

    def archive(self, uri: str) -> dict[str, bytes]:
        key = uri.partition(f"{self.local.bucket}/")[2]
        body = self.s3.get_object(Bucket=self.local.bucket, Key=key)["Body"].read()
        with tarfile.open(fileobj=io.BytesIO(body)) as tar:
            return {member.name: tar.extractfile(member).read() for member in tar.getmembers() if member.isfile()}


def output_of(bench, job):
    return bench.archive(job["ModelArtifacts"]["S3ModelArtifacts"].replace("model.tar.gz", "output.tar.gz"))


def start_job(local, name, stop):
    """Start a profiled job that lasts until the file `stop` exists."""
    bench = Bench(local)
    request = bench.request(
        SCRIPT.format(stop=str(stop)),
        StoppingCondition={"MaxRuntimeInSeconds": 3600},
        Environment={"SM_PROFILER_AUTO": "1"},
        ProfilerConfig={
            "S3OutputPath": f"s3://{local.bucket}/out",
            "ProfilingIntervalInMilliseconds": 500,
            "ProfilingParameters": {"LocalPath": "/opt/ml/output/profiler"},
        },
    )
    bench.sagemaker.create_training_job(**{**request, "TrainingJobName": name})


def wait_for_end(local, name, seconds=300):
    """Wait until the job has ended, and return its description."""
    return Bench(local).wait(name, seconds)
