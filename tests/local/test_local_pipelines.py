"""A pipeline of SDK v2 with a profiled training and a step that runs the rules; each step's request runs on the endpoint.

The endpoint runs no pipelines: the test resolves the definition's references as the service does.
"""

import json
import warnings

import pytest

RULES_IMAGE = "123456789012.dkr.ecr.us-east-1.amazonaws.com/sm-profiler-rules:1"
SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for (x,) in DataLoader(TensorDataset(torch.randn(40, 4)), 1):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
"""


def definition(bucket, role, folder):
    """Return the pipeline as the SDK sends it."""
    from sagemaker.processing import ProcessingInput, ProcessingOutput, Processor
    from sagemaker.pytorch import PyTorch
    from sagemaker.workflow.functions import Join
    from sagemaker.workflow.parameters import ParameterString
    from sagemaker.workflow.pipeline import Pipeline
    from sagemaker.workflow.pipeline_context import PipelineSession
    from sagemaker.workflow.steps import ProcessingStep, TrainingStep

    from sm_profiler.debugger import FrameworkProfile, ProfilerConfig
    from sm_profiler.launch import attach

    session = PipelineSession(default_bucket=bucket)
    where = ParameterString("Where", default_value=f"s3://{bucket}/pipeline")
    (folder / "train.py").write_text(SCRIPT)
    estimator = PyTorch(
        entry_point="train.py", source_dir=str(folder), role=role, instance_type="ml.m5.xlarge", instance_count=1,
        framework_version="2.6.0", py_version="py312", output_path=where, sagemaker_session=session,
    )  # fmt: skip
    attach(estimator, ProfilerConfig(s3_output_path=where, framework_profile_params=FrameworkProfile()))
    training = TrainingStep(name="Train", step_args=estimator.fit())
    rules = Processor(
        role=role, image_uri=RULES_IMAGE, instance_count=1, instance_type="ml.t3.medium", sagemaker_session=session,
        env={"rule_to_invoke": "ProfilerReport"},
    )  # fmt: skip
    profile = Join(on="/", values=[where, training.properties.TrainingJobName, "profiler-output"])
    inputs = [ProcessingInput(source=profile, destination="/opt/ml/processing/input/profiler", input_name="profile")]
    target = Join(on="/", values=[where, "rules"])
    outputs = [ProcessingOutput(source="/opt/ml/processing/output/rule", destination=target, output_name="rule")]
    judging = ProcessingStep(name="Judge", step_args=rules.run(inputs=inputs, outputs=outputs))
    pipeline = Pipeline(name="p", parameters=[where], steps=[training, judging], sagemaker_session=session)
    return json.loads(pipeline.definition())


def resolved(value, known):
    """Replace references by what is known of parameters and earlier steps."""
    if isinstance(value, list):
        return [resolved(one, known) for one in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"Get"}:
        return known[value["Get"]]
    if set(value) == {"Std:Join"}:
        return value["Std:Join"]["On"].join(resolved(value["Std:Join"]["Values"], known))
    return {key: resolved(one, known) for key, one in value.items()}


@pytest.mark.long
def test_a_pipeline_trains_with_a_profile_and_judges_it(bench, tmp_path, monkeypatch):
    for variable, value in bench.local.environment.items():
        monkeypatch.setenv(variable, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the SDK's own
        found = definition(bench.local.bucket, bench.local.role, tmp_path)
    known = {f"Parameters.{one['Name']}": one["DefaultValue"] for one in found["Parameters"]}
    training, judging = found["Steps"]
    bench.sagemaker.create_training_job(TrainingJobName="pipelines-train", **resolved(training["Arguments"], known))
    job = bench.wait("pipelines-train", 120)
    assert job["TrainingJobStatus"] == "Completed", job.get("FailureReason")
    known["Steps.Train.TrainingJobName"] = "pipelines-train"
    bench.sagemaker.create_processing_job(ProcessingJobName="pipelines-judge", **resolved(judging["Arguments"], known))
    job = bench.until(
        lambda: bench.sagemaker.describe_processing_job(ProcessingJobName="pipelines-judge"),
        lambda job: job["ProcessingJobStatus"] in ("Completed", "Failed", "Stopped"),
        120,
    )
    assert job["ProcessingJobStatus"] == "Completed", job
    report = bench.s3.get_object(Bucket=bench.local.bucket, Key="pipeline/rules/profiler-output/report.json")
    (rank,) = json.loads(report["Body"].read())["job"]["ranks"]
    assert rank["train_steps"] == 40
    assert "pipeline/rules/profiler-output/profiler-report.html" in bench.keys("pipeline/rules/")
