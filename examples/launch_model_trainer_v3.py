"""SDK v3's ModelTrainer and the managed service: the configuration is attached, as there is no argument for it.

pip install 'sm-profiler[sagemaker3]'
SAGEMAKER_ROLE=arn:aws:iam::…:role/… python launch_model_trainer_v3.py
"""

import os
from pathlib import Path

from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute, SourceCode

from sm_profiler.debugger import FrameworkProfile, ProfilerConfig, ProfilerRule, rule_configs
from sm_profiler.launch import attach

trainer = ModelTrainer(
    training_image="763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.6.0-cpu-py312",
    source_code=SourceCode(source_dir=str(Path(__file__).parent / "launch_source"), entry_script="train.py"),
    compute=Compute(instance_type="ml.m5.xlarge", instance_count=1),
    hyperparameters={"steps": 30},
    role=os.environ["SAGEMAKER_ROLE"],
    base_job_name="launched-by-model-trainer",
)
profile = ProfilerConfig(
    system_monitor_interval_millis=500,
    framework_profile_params=FrameworkProfile(start_step=5, num_steps=2),
)
attach(trainer, profile, [ProfilerRule.sagemaker(rule_configs.ProfilerReport())])
trainer.train(wait=False, logs=False)
