"""What a user of SageMaker SDK v3 writes: a ModelTrainer, and a TrainingJob with a profiler; prints what it saw as JSON."""

import json
import sys
from pathlib import Path

import boto3
from sagemaker.core import shapes
from sagemaker.core.resources import TrainingJob
from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute, InputData, SourceCode

bucket, folder = sys.argv[1:]
role = "arn:aws:iam::123456789012:role/sm-profiler-local"
image = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.6.0-cpu-py312"
boto3.client("s3").put_object(Bucket=bucket, Key="v3/train/a.txt", Body=b"hello")

trainer = ModelTrainer(
    training_image=image,
    role=role,
    source_code=SourceCode(source_dir=folder, entry_script="train.py"),
    compute=Compute(instance_type="ml.m5.large", instance_count=1),
    hyperparameters={"learning-rate": 0.1, "epochs": 3},
    base_job_name="v3",
)
channel = InputData(channel_name="train", data_source=f"s3://{bucket}/v3/train")
trainer.train(input_data_config=[channel], wait=True, logs=True)
trained = trainer._latest_training_job

job = TrainingJob.create(
    training_job_name="v3-resource",
    role_arn=role,
    algorithm_specification=shapes.AlgorithmSpecification(
        training_image=image,
        training_input_mode="File",
        container_entrypoint=["python3", "-c"],
        container_arguments=["print('a line of v3'); raise SystemExit(4)"],
    ),
    output_data_config=shapes.OutputDataConfig(s3_output_path=f"s3://{bucket}/v3"),
    resource_config=shapes.ResourceConfig(instance_type="ml.m5.large", instance_count=1, volume_size_in_gb=1),
    stopping_condition=shapes.StoppingCondition(max_runtime_in_seconds=60),
    profiler_config=shapes.ProfilerConfig(s3_output_path=f"s3://{bucket}/v3", profiling_interval_in_milliseconds=500),
)
try:
    job.wait(poll=1, logs=True)
    message = "no error"
except Exception as error:
    message = str(error)
found = {
    "trained": trained.training_job_status,
    "model": trained.model_artifacts.s3_model_artifacts,
    "profiling": job.refresh().profiling_status,
    "interval": job.profiler_config.profiling_interval_in_milliseconds,
    "message": message,
}
Path(folder, "found.json").write_text(json.dumps(found))
