"""Cases for the environment of SDK v3 (see test_launch_sdk3.py), one function each; prints results as JSON."""

import json
import logging
import sys
import warnings

import boto3
import sagemaker.core.helper.iam_role_resolver as roles
from moto import mock_aws
from sagemaker.core import shapes
from sagemaker.core.helper.session_helper import Session
from sagemaker.core.parameter import ContinuousParameter
from sagemaker.core.resources import TrainingJob
from sagemaker.core.training.configs import CheckpointConfig, Compute, Networking, OutputDataConfig
from sagemaker.core.utils.utils import SageMakerClient
from sagemaker.core.workflow.pipeline_context import PipelineSession
from sagemaker.train import ModelTrainer
from sagemaker.train.tuner import HyperparameterTuner

from sm_profiler.config import config_from_environment, load_profile
from sm_profiler.debugger import FrameworkProfile, ProfilerConfig, ProfilerRule, rule_configs
from sm_profiler.errors import ConfigError
from sm_profiler.launch import attach, to_request, to_shapes

ROLE = "arn:aws:iam::123456789012:role/r"
TRUST = {"Effect": "Allow", "Principal": {"Service": "sagemaker.amazonaws.com"}, "Action": "sts:AssumeRole"}
PROFILE = ProfilerConfig(
    system_monitor_interval_millis=500, framework_profile_params=FrameworkProfile(start_step=5, num_steps=2)
)
RULES = [ProfilerRule.sagemaker(rule_configs.ProfilerReport())]
OUTPUT = "s3://bucket/out"


class StopHereError(Exception):
    """Raised instead of sending a request."""


class Wire:
    def __init__(self, region="us-east-1"):
        self.sent = []
        self.boto = boto3.Session(region_name=region, aws_access_key_id="a", aws_secret_access_key="b")  # none
        self.boto.events.register_last("before-call.sagemaker", self.keep)

    def keep(self, params, model, **_kwargs):
        if model.name.startswith(("Create", "Update")):
            self.sent.append(json.loads(params["body"]))
            raise StopHereError

    def seen(self, call):
        try:
            call()
        except StopHereError:
            return self.sent[-1]
        raise AssertionError("nothing was sent")


def trainer(wire, session=None, **more):
    return ModelTrainer(
        training_image="image",
        role=ROLE,
        compute=more.pop("compute", Compute(instance_type="ml.m5.large", instance_count=1)),
        output_data_config=OutputDataConfig(s3_output_path=OUTPUT, kms_key_id="key"),
        sagemaker_session=session or Session(boto_session=wire.boto, default_bucket="bucket"),
        base_job_name="job",
        environment={"MINE": "1"},
        **more,
    )


def expected(wire):
    request = to_request(PROFILE, RULES, session=wire.boto, s3_output_path=OUTPUT)
    # SDK v3 omits members that are False, which the service takes as False
    request["ProfilerConfig"].pop("DisableProfiler")
    return request


def profiler_part(request):
    return {key: value for key, value in request.items() if key.startswith("Profiler")}


def create(wire):
    made = to_shapes(PROFILE, RULES, session=wire.boto, s3_output_path=OUTPUT)
    assert isinstance(made["profiler_config"], shapes.ProfilerConfig)
    create_it = lambda: TrainingJob.create(  # noqa: E731 - called once
        training_job_name="j",
        role_arn=ROLE,
        output_data_config=shapes.OutputDataConfig(s3_output_path=OUTPUT),
        session=wire.boto,
        **made,
    )
    assert profiler_part(wire.seen(create_it)) == expected(wire)


def update(wire):
    SageMakerClient(session=wire.boto)
    made = to_shapes(PROFILE, RULES, session=wire.boto, s3_output_path=OUTPUT)
    job = TrainingJob(training_job_name="j")
    assert profiler_part(wire.seen(lambda: job.update(**made))) == expected(wire)
    off = to_shapes(ProfilerConfig(disable_profiler=True))
    assert wire.seen(lambda: job.update(**off))["ProfilerConfig"] == {"DisableProfiler": True}


def train(wire):
    one, other = trainer(wire), trainer(wire)
    with attach(one, PROFILE, RULES):
        sent = wire.seen(lambda: one.train(wait=False))
        assert profiler_part(sent) == expected(wire)
        assert sent["Environment"] == {"MINE": "1", "SM_PROFILER_AUTO": "1"}
        assert one.environment == {"MINE": "1"}
        assert one.model_dump(warnings=False).keys() == other.model_dump(warnings=False).keys()
        assert repr(one).partition("(")[0] == "ModelTrainer"
        assert isinstance(one, ModelTrainer)
        copied = one.model_copy(update={"environment": {"ITS": "own"}})
        assert wire.seen(lambda: copied.train(wait=False))["Environment"] == {"ITS": "own", "SM_PROFILER_AUTO": "1"}
        assert profiler_part(wire.seen(lambda: other.train(wait=False))) == {}
        one.train(dry_run=True)
    assert profiler_part(wire.seen(lambda: one.train(wait=False))) == {}
    assert type(one) is ModelTrainer


def batch(wire):
    one = trainer(wire)
    attach(one, PROFILE, RULES)
    payload = one._create_training_job_args(boto3=True)
    assert profiler_part(payload) == to_request(PROFILE, RULES, session=wire.boto, s3_output_path=OUTPUT)
    assert payload["Environment"]["SM_PROFILER_AUTO"] == "1"


def step_arguments(session, one):
    """Arguments that a TrainingStep takes from its trainer for the pipeline's definition."""
    step = one.train()
    step.func(*step.func_args, **step.func_kwargs)
    found, session.context = session.context.args, None
    return found


def pipeline(wire):
    session = PipelineSession(boto_session=wire.boto, default_bucket="bucket")
    one = trainer(wire, session=session)
    attach(one, PROFILE, RULES)
    arguments = step_arguments(session, one)
    assert profiler_part(arguments) == to_request(PROFILE, RULES, session=wire.boto, s3_output_path=OUTPUT)
    two = trainer(wire, session=session)
    attach(two, PROFILE, backend="agent")
    assert step_arguments(session, two)["Environment"]["SM_PROFILER_AUTO"] == "1"


def agent(wire):
    one = trainer(wire)
    attach(one, PROFILE, backend="agent")
    sent = wire.seen(lambda: one.train(wait=False))
    assert profiler_part(sent) == {}
    carried = load_profile(config_from_environment(sent["Environment"]))
    assert (carried.s3_output_path, carried.kms_key_id) == (OUTPUT, "key")
    assert sent["Environment"]["MINE"] == "1"
    closed = trainer(
        wire,
        networking=Networking(enable_network_isolation=True),
        checkpoint_config=CheckpointConfig(s3_uri="s3://bucket/c"),
    )
    attach(closed, PROFILE, backend="agent")
    sent = wire.seen(lambda: closed.train(wait=False))
    carried = load_profile(config_from_environment(sent["Environment"]))
    assert carried.local_path.endswith("/sm-profiler")
    assert carried.local_path.startswith("/opt/ml/checkpoints")
    assert carried.s3_output_path is None


def tuner_of(one):
    ranges = {"rate": ContinuousParameter(0.1, 0.2)}
    metrics = [{"Name": "loss", "Regex": "loss: (.*)"}]
    return HyperparameterTuner(one, "loss", ranges, metric_definitions=metrics, max_jobs=2)


def logged(call):
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("sm_profiler.launch.attachment")
    logger.addHandler(handler)
    try:
        sent = call()
    finally:
        logger.removeHandler(handler)
    return sent, [line for line in lines if "its trials are not profiled" in line]


def tuning(wire):
    for backend in ("service", "agent"):
        one = trainer(wire)
        attachments = [attach(one, PROFILE, backend=backend), attach(trainer(wire), PROFILE, backend=backend)]
        sent, lines = logged(lambda one=one: wire.seen(lambda: tuner_of(one).tune(job_name="t", wait=False)))
        assert len(lines) == 1, lines
        assert "backend='agent'" in lines[0]
        assert sent["TrainingJobDefinition"]["Environment"] == {"MINE": "1"}
        for each in attachments:
            each.detach()
        assert logged(lambda one=one: wire.seen(lambda: tuner_of(one).tune(job_name="t", wait=False)))[1] == []
    one = trainer(wire)
    attach(one, PROFILE, backend="agent")
    attach(one.sagemaker_session, PROFILE, backend="agent")
    sent, lines = logged(lambda: wire.seen(lambda: tuner_of(one).tune(job_name="t", wait=False)))
    assert lines == []
    carried = load_profile(config_from_environment(sent["TrainingJobDefinition"]["Environment"]))
    assert carried.s3_output_path == OUTPUT


def far_away(wire):
    del wire
    far = Wire("me-central-1")
    one = trainer(far)
    attach(one, PROFILE)
    assert "backend='agent'" in error_of(lambda: one.train(wait=False))
    trainium = trainer(Wire(), compute=Compute(instance_type="ml.trn1.2xlarge", instance_count=1))
    attach(trainium, PROFILE)
    assert "ml.trn1.2xlarge" in error_of(lambda: trainium.train(wait=False))


def error_of(call):
    try:
        call()
    except ConfigError as error:
        return str(error)
    raise AssertionError("no error")


def broken_release(wire):
    kept, ModelTrainer._create_training_job_args = ModelTrainer._create_training_job_args, None
    try:
        message = error_of(lambda: attach(trainer(wire), PROFILE))
    finally:
        ModelTrainer._create_training_job_args = kept
    assert "3.27.0" in message
    assert "to_shapes" in message
    one = trainer(wire)
    kept, ModelTrainer._create_training_job_args = ModelTrainer._create_training_job_args, lambda *_a, **_k: ["else"]
    attach(one, PROFILE)
    try:
        message = error_of(lambda: one.train(wait=False))
    finally:
        ModelTrainer._create_training_job_args = kept
    assert "3.27.0" in message


def session(wire):
    kept = SageMakerClient(session=wire.boto).sagemaker_client  # created before, and cached by the SDK
    attachment = attach(Session(boto_session=wire.boto, default_bucket="bucket"), PROFILE, RULES)
    request = {"TrainingJobName": "j", "RoleArn": ROLE, "OutputDataConfig": {"S3OutputPath": OUTPUT}}
    whole = to_request(PROFILE, RULES, session=wire.boto, s3_output_path=OUTPUT)
    for client in (kept, wire.boto.client("sagemaker")):
        assert profiler_part(wire.seen(lambda client=client: client.create_training_job(**request))) == whole
    assert profiler_part(wire.seen(lambda: trainer(wire).train(wait=False))) == whole
    attachment.detach()
    assert profiler_part(wire.seen(lambda: kept.create_training_job(**request))) == {}


CASES = (create, update, train, batch, pipeline, agent, tuning, far_away, broken_release, session)


def main():
    warnings.simplefilter("ignore")
    roles._simulate_denied_actions = lambda *_a, **_k: ([], [])  # moto does not implement it
    results = {}
    with mock_aws():
        boto3.client("iam", region_name="us-east-1").create_role(
            RoleName="r", AssumeRolePolicyDocument=json.dumps({"Version": "2012-10-17", "Statement": [TRUST]})
        )
        for case in CASES:
            SageMakerClient.reset()
            try:
                case(Wire())
                results[case.__name__] = "fine"
            except Exception as error:
                import traceback

                results[case.__name__] = f"{type(error).__name__}: {error}\n{traceback.format_exc()[-1500:]}"
    sys.stdout.write("RESULTS " + json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
