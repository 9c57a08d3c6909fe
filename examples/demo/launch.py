"""Launch train.py with a profile, through version 2 of the SageMaker Python SDK.

`sm-profiler demo` runs this script on the local endpoint.  To run it yourself:

    sm-profiler local                         # in one shell
    eval "$(sm-profiler local --env)"         # in another
    python examples/demo/launch.py

On AWS, set your own role instead of the local endpoint's variables, and list sm-profiler in a requirements.txt next to
train.py.
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
    environment={"SM_PROFILER_AUTO": "1"},  # switches the hook on
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
