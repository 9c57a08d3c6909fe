"""A training job on the local endpoint that lasts until a file exists."""

import io
import json
import tarfile
import time

IMAGE = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.6.0-cpu-py312"
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


def start_job(local, name, stop):
    """Start a profiled job that lasts until the file `stop` exists."""
    with io.BytesIO() as buffer:
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            text = SCRIPT.format(stop=str(stop)).encode()
            member = tarfile.TarInfo("train.py")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))
        local.client("s3").put_object(Bucket=local.bucket, Key=f"sources/{name}.tar.gz", Body=buffer.getvalue())
    local.client("sagemaker").create_training_job(
        TrainingJobName=name,
        RoleArn=local.role,
        AlgorithmSpecification={"TrainingImage": IMAGE, "TrainingInputMode": "File"},
        HyperParameters={
            "sagemaker_submit_directory": json.dumps(f"s3://{local.bucket}/sources/{name}.tar.gz"),
            "sagemaker_program": json.dumps("train.py"),
        },
        OutputDataConfig={"S3OutputPath": f"s3://{local.bucket}/out"},
        ResourceConfig={"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1},
        StoppingCondition={"MaxRuntimeInSeconds": 3600},
        Environment={"SM_PROFILER_AUTO": "1"},
        ProfilerConfig={
            "S3OutputPath": f"s3://{local.bucket}/out",
            "ProfilingIntervalInMilliseconds": 500,
            "ProfilingParameters": {"LocalPath": "/opt/ml/output/profiler"},
        },
    )


def wait_for_end(local, name, seconds=300):
    """Wait until the job has ended, and return its description."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = local.client("sagemaker").describe_training_job(TrainingJobName=name)
        if found["TrainingJobStatus"] not in {"InProgress", "Stopping"}:
            return found
        time.sleep(0.2)
    raise AssertionError(f"{name} has not ended")
