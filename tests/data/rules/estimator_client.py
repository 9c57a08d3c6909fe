"""Trains through SDK v2's Estimator with a user's rule on the local endpoint: `estimator_client.py FOLDER ROLE`."""

import json
import sys
import time
from pathlib import Path

import sagemaker
from sagemaker.estimator import Estimator

from sm_profiler import ProfilerConfig, ProfilerRule

FINAL = ("NoIssuesFound", "IssuesFound", "Error", "Stopped")
folder, role = Path(sys.argv[1]), sys.argv[2]
session = sagemaker.Session()
custom = ProfilerRule.custom(
    name="Mine",
    image_uri="123456789012.dkr.ecr.us-east-1.amazonaws.com/sm-profiler-rules:0.1.0",
    instance_type="ml.t3.medium",
    volume_size_in_gb=30,
    source=str(folder / "mine.py"),
    rule_to_invoke="AnySamples",
    rule_parameters={"least": "3"},
)
estimator = Estimator(
    image_uri="763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.6.0-cpu-py312",
    role=role,
    instance_count=1,
    instance_type="ml.m5.large",
    entry_point="train.py",
    source_dir=str(folder),
    sagemaker_session=session,
    profiler_config=ProfilerConfig(system_monitor_interval_millis=100),
    rules=[custom],
)
estimator.fit(wait=False, logs=False)
name = estimator.latest_training_job.name
end = time.monotonic() + 120
while time.monotonic() < end:
    job = session.sagemaker_client.describe_training_job(TrainingJobName=name)
    rules = job["ProfilerRuleEvaluationStatuses"]
    if job["TrainingJobStatus"] != "InProgress" and all(rule["RuleEvaluationStatus"] in FINAL for rule in rules):
        break
    time.sleep(0.5)
print(json.dumps([job["TrainingJobStatus"], rules], default=str))  # noqa: T201 - what the test reads
