"""Agent backend: the configuration is passed in the container's environment, without the managed service.

This example uses an Estimator of SDK v2; `attach` takes a ModelTrainer, a boto3 client or a session in the same way.

    SAGEMAKER_ROLE=arn:aws:iam::…:role/… python launch_agent.py
"""

import os
from pathlib import Path

from sagemaker.pytorch import PyTorch

from sm_profiler.debugger import FrameworkProfile, ProfilerConfig
from sm_profiler.launch import attach

estimator = PyTorch(
    entry_point="train.py",
    # sm-profiler must be in the image, or in a requirements.txt in this folder
    source_dir=str(Path(__file__).parent / "launch_source"),
    role=os.environ["SAGEMAKER_ROLE"],
    instance_type="ml.m5.xlarge",
    instance_count=1,
    framework_version="2.6.0",
    py_version="py312",
    hyperparameters={"steps": 30},
)
profile = ProfilerConfig(
    system_monitor_interval_millis=500,
    framework_profile_params=FrameworkProfile(start_step=5, num_steps=2),
)
attach(estimator, profile, backend="agent")
estimator.fit(wait=False)
print(estimator.latest_training_job.name)
