"""What a user of SageMaker SDK v3 writes to get a profile; prints the job's name last."""

import sys

from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute, SourceCode

from sm_profiler.debugger import DataloaderProfilingConfig, FrameworkProfile, ProfilerConfig, ProfilerRule, rule_configs
from sm_profiler.launch import attach

bucket, folder, backend = sys.argv[1:]
trainer = ModelTrainer(
    training_image="763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.6.0-cpu-py312",
    role="arn:aws:iam::123456789012:role/sm-profiler-local",
    source_code=SourceCode(source_dir=folder, entry_script="train.py"),
    compute=Compute(instance_type="ml.m5.large", instance_count=1),
    hyperparameters={"images": 320},
    base_job_name="attached",
)
config = ProfilerConfig(
    s3_output_path=f"s3://{bucket}/attached-{backend}",
    system_monitor_interval_millis=500,
    framework_profile_params=FrameworkProfile(
        dataloader_profiling_config=DataloaderProfilingConfig(start_step=5, num_steps=5)
    ),
)
rules = [ProfilerRule.sagemaker(rule_configs.ProfilerReport())] if backend == "service" else []
attach(trainer, config, rules, backend=backend)
trainer.train(wait=True, logs=False)
sys.stdout.write(f"\n{trainer._latest_training_job.training_job_name}\n")
