"""SDK v2 and the managed service: only the import changes.

pip install 'sm-profiler[sagemaker2]'
SAGEMAKER_ROLE=arn:aws:iam::…:role/… python launch_estimator_v2.py
"""

import os
from pathlib import Path

from sagemaker.pytorch import PyTorch

from sm_profiler.debugger import FrameworkProfile, ProfilerConfig, ProfilerRule, rule_configs

estimator = PyTorch(
    entry_point="train.py",
    source_dir=str(Path(__file__).parent / "launch_source"),
    role=os.environ["SAGEMAKER_ROLE"],
    instance_type="ml.m5.xlarge",
    instance_count=1,
    framework_version="2.6.0",
    py_version="py312",
    hyperparameters={"steps": 30},
    environment={"SM_PROFILER_AUTO": "1"},  # switches the hook on; ENV in your image does the same
    profiler_config=ProfilerConfig(
        system_monitor_interval_millis=500,
        framework_profile_params=FrameworkProfile(start_step=5, num_steps=2),
    ),
    rules=[ProfilerRule.sagemaker(rule_configs.ProfilerReport())],
)
estimator.fit(wait=False)
print(estimator.latest_job_profiler_artifacts_path())
