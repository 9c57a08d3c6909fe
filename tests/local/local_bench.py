"""Shortcuts to run a script as a job on a local endpoint."""

import io
import json
import tarfile
import time
from typing import Any

from sm_profiler.local import LocalSageMaker

IMAGE = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.6.0-cpu-py312"


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
        key = f"sources/{self.count}/sourcedir.tar.gz"
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
