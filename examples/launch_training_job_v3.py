"""SDK v3's TrainingJob and the managed service: `create` and `update` take shapes from `to_shapes`.

pip install 'sm-profiler[sagemaker3]'
SAGEMAKER_ROLE=arn:aws:iam::…:role/… BUCKET=… python launch_training_job_v3.py
"""

import io
import json
import os
import tarfile
import time
from pathlib import Path

import boto3
from sagemaker.core import shapes
from sagemaker.core.resources import TrainingJob

from sm_profiler.debugger import FrameworkProfile, ProfilerConfig, ProfilerRule, rule_configs
from sm_profiler.launch import to_shapes

session = boto3.Session()
bucket, name = os.environ["BUCKET"], f"launched-by-training-job-{int(time.time())}"

buffer = io.BytesIO()
with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
    tar.add(Path(__file__).parent / "launch_source", arcname=".")
session.client("s3").put_object(Bucket=bucket, Key=f"{name}/source.tar.gz", Body=buffer.getvalue())

profile = ProfilerConfig(
    system_monitor_interval_millis=500,
    framework_profile_params=FrameworkProfile(start_step=5, num_steps=2),
)
rules = [ProfilerRule.sagemaker(rule_configs.ProfilerReport())]
job = TrainingJob.create(
    training_job_name=name,
    role_arn=os.environ["SAGEMAKER_ROLE"],
    algorithm_specification=shapes.AlgorithmSpecification(
        training_image="763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.6.0-cpu-py312",
        training_input_mode="File",
    ),
    hyper_parameters={
        "sagemaker_program": json.dumps("train.py"),
        "sagemaker_submit_directory": json.dumps(f"s3://{bucket}/{name}/source.tar.gz"),
        "steps": "30",
    },
    output_data_config=shapes.OutputDataConfig(s3_output_path=f"s3://{bucket}/"),
    resource_config=shapes.ResourceConfig(instance_type="ml.m5.xlarge", instance_count=1, volume_size_in_gb=30),
    stopping_condition=shapes.StoppingCondition(max_runtime_in_seconds=3600),
    environment={"SM_PROFILER_AUTO": "1"},  # switches the hook on; ENV in your image does the same
    session=session,
    **to_shapes(profile, rules, session=session, s3_output_path=f"s3://{bucket}/"),
)
print(f"s3://{bucket}/{name}/profiler-output")
