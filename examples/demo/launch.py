"""Launches train.py with the SageMaker Python SDK, version 2, and a profile: what a user writes.

`sm-profiler demo` runs it against the endpoint on this machine.  In a shell of your own:

    sm-profiler local            # in one shell; it prints what the other one needs
    python examples/demo/launch.py

Against AWS, give your own role, drop the local endpoint's environment, add environment={"SM_PROFILER_AUTO": "1"}, which the
local endpoint sets by itself, and name sm-profiler in a requirements.txt beside train.py.
"""

import os
from pathlib import Path

from sagemaker.pytorch import PyTorch

from sm_profiler.debugger import (
    DataloaderProfilingConfig,
    FrameworkProfile,
    ProfilerConfig,
    ProfilerRule,
    rule_configs,
)

ROLE = os.environ.get("SAGEMAKER_ROLE", "arn:aws:iam::123456789012:role/sm-profiler-local")

estimator = PyTorch(
    entry_point="train.py",
    source_dir=str(Path(__file__).parent),
    role=ROLE,
    framework_version="2.6.0",
    py_version="py312",
    instance_count=1,
    instance_type="ml.m5.xlarge",
    base_job_name="sm-profiler-demo",
    hyperparameters={"epochs": 1, "batch-size": 32},
    metric_definitions=[{"Name": "loss", "Regex": r"loss: ([0-9.]+)"}],
    profiler_config=ProfilerConfig(
        system_monitor_interval_millis=500,
        framework_profile_params=FrameworkProfile(
            dataloader_profiling_config=DataloaderProfilingConfig(start_step=5, num_steps=50),
        ),
    ),
    rules=[ProfilerRule.sagemaker(rule_configs.ProfilerReport())],
)
estimator.fit()
