"""boto3 and the managed service, with keyword arguments from `to_request`.

SAGEMAKER_ROLE=arn:aws:iam::…:role/… BUCKET=… python launch_boto3.py
"""

import io
import json
import os
import tarfile
import time
from pathlib import Path

import boto3

from sm_profiler.debugger import FrameworkProfile, ProfilerConfig, ProfilerRule, rule_configs
from sm_profiler.launch import to_request

session = boto3.Session()
bucket, name = os.environ["BUCKET"], f"launched-by-boto3-{int(time.time())}"

buffer = io.BytesIO()
with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
    tar.add(Path(__file__).parent / "launch_source", arcname=".")
session.client("s3").put_object(Bucket=bucket, Key=f"{name}/source.tar.gz", Body=buffer.getvalue())

profile = ProfilerConfig(
    system_monitor_interval_millis=500,
    framework_profile_params=FrameworkProfile(start_step=5, num_steps=2),
)
rules = [ProfilerRule.sagemaker(rule_configs.ProfilerReport())]
session.client("sagemaker").create_training_job(
    TrainingJobName=name,
    RoleArn=os.environ["SAGEMAKER_ROLE"],
    AlgorithmSpecification={
        "TrainingImage": "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.6.0-cpu-py312",
        "TrainingInputMode": "File",
    },
    HyperParameters={
        "sagemaker_program": json.dumps("train.py"),
        "sagemaker_submit_directory": json.dumps(f"s3://{bucket}/{name}/source.tar.gz"),
        "steps": "30",
    },
    OutputDataConfig={"S3OutputPath": f"s3://{bucket}/"},
    ResourceConfig={"InstanceType": "ml.m5.xlarge", "InstanceCount": 1, "VolumeSizeInGB": 30},
    StoppingCondition={"MaxRuntimeInSeconds": 3600},
    Environment={"SM_PROFILER_AUTO": "1"},  # switches the hook on; ENV in your image does the same
    **to_request(profile, rules, session=session, s3_output_path=f"s3://{bucket}/"),
)
print(f"s3://{bucket}/{name}/profiler-output")
