"""The agent backend: the configuration travels in the container's environment, and the managed service is not asked.

Here with an Estimator of SDK v2; a ModelTrainer, a boto3 client and a session are attached to in the same way.

    SAGEMAKER_ROLE=arn:aws:iam::…:role/… python launch_agent.py
"""

import os
from pathlib import Path

from sagemaker.pytorch import PyTorch

from sm_profiler.debugger import FrameworkProfile, ProfilerConfig
from sm_profiler.launch import attach

estimator = PyTorch(
    entry_point="train.py",
    source_dir=str(
        Path(__file__).parent / "launch_source"
    ),  # sm-profiler is listed in its requirements.txt, or installed in the image
    role=os.environ["SAGEMAKER_ROLE"],
    instance_type="ml.m5.xlarge",
    instance_count=1,
    framework_version="2.3",
    py_version="py311",
    hyperparameters={"steps": 30},
)
profile = ProfilerConfig(
    system_monitor_interval_millis=500,
    framework_profile_params=FrameworkProfile(start_step=5, num_steps=2),
)
attach(estimator, profile, backend="agent")
estimator.fit(wait=False)
print(estimator.latest_training_job.name)
