"""boto3 clients and sessions: jobs of third-party launchers, and tuning jobs."""

import json
from types import SimpleNamespace

import boto3
import pytest
from botocore.exceptions import ParamValidationError

from sm_profiler.config import config_from_environment, explain, load_profile
from sm_profiler.debugger import FrameworkProfile, ProfilerConfig, ProfilerRule
from sm_profiler.errors import ConfigError
from sm_profiler.launch import agent_environment, attach, to_request

JOB = {
    "TrainingJobName": "job",
    "RoleArn": "arn:aws:iam::123456789012:role/r",
    "OutputDataConfig": {"S3OutputPath": "s3://bucket/out", "KmsKeyId": "key"},
    "Environment": {"MINE": "1"},
}
PROFILE = ProfilerConfig(framework_profile_params=FrameworkProfile(start_step=4))
RULE = ProfilerRule.custom("mine", "image:1", "ml.m5.large", 10)


class Wire:
    """A session whose requests are recorded instead of sent."""

    def __init__(self, region="us-east-1"):
        self.sent = []
        self.session = boto3.Session(aws_access_key_id="a", aws_secret_access_key="b", region_name=region)  # none

    def client(self):
        client = self.session.client("sagemaker")
        client.meta.events.register_last("before-call.sagemaker", self.keep)
        return client

    def keep(self, params, **_kwargs):
        self.sent.append(json.loads(params["body"]))
        return SimpleNamespace(status_code=200), {}


@pytest.fixture
def wire():
    return Wire()


def test_a_client_profiles_every_training_job(wire):
    client = wire.client()
    with attach(client, PROFILE, [RULE]) as attachment:
        client.create_training_job(**JOB)
        client.create_training_job(**{**JOB, "TrainingJobName": "second"})
    client.create_training_job(**JOB)
    attachment.detach()
    first, second, third = wire.sent
    assert first["ProfilerConfig"] == {"S3OutputPath": "s3://bucket/out", **PROFILE._to_request_dict()}
    assert first["ProfilerRuleConfigurations"] == [RULE.to_profiler_rule_config_dict()]
    assert first["Environment"] == {"SM_PROFILER_AUTO": "1", "MINE": "1"}
    assert second["ProfilerConfig"] == first["ProfilerConfig"]
    assert third == JOB
    assert JOB["Environment"] == {"MINE": "1"}


def test_leaves_other_operations_unchanged(wire):
    client = wire.client()
    attach(client, PROFILE)
    client.list_training_jobs()
    client.stop_training_job(TrainingJobName="job")
    assert wire.sent == [{}, {"TrainingJobName": "job"}]


def test_keeps_the_requests_rules_and_reports_a_replaced_configuration(wire, caplog):
    client = wire.client()
    attach(client, PROFILE, [RULE])
    own = {"RuleConfigurationName": "own", "RuleEvaluatorImage": "i"}
    bare = {"S3OutputPath": "s3://bucket/x", "DisableProfiler": False}  # the default of an SDK v2 Estimator
    client.create_training_job(**JOB, ProfilerConfig=bare, ProfilerRuleConfigurations=[own])
    assert [rule["RuleConfigurationName"] for rule in wire.sent[0]["ProfilerRuleConfigurations"]] == ["own", "mine"]
    assert not caplog.records
    client.create_training_job(**JOB, ProfilerConfig={"ProfilingParameters": {"LocalPath": "/x"}})
    assert "replaced" in caplog.text


def test_a_request_keeps_what_the_attached_configuration_lacks(wire, caplog):
    client = wire.client()
    own = {"S3OutputPath": "s3://mine/", "ProfilingIntervalInMilliseconds": 100}
    with attach(client, PROFILE):
        client.create_training_job(**JOB, ProfilerConfig=own)
    assert wire.sent[0]["ProfilerConfig"] == {**own, **PROFILE._to_request_dict()}
    with attach(client):
        client.create_training_job(**JOB, ProfilerConfig={"ProfilingParameters": {"LocalPath": "/x"}})
    assert wire.sent[1]["ProfilerConfig"]["ProfilingParameters"] == {"LocalPath": "/x"}
    assert wire.sent[1]["Environment"]["SM_PROFILER_AUTO"] == "1"
    assert not caplog.records


def test_names_what_an_attached_configuration_replaces_in_a_request(wire, caplog):
    client = wire.client()
    attach(client, ProfilerConfig("s3://ours/", 500))
    own = {"S3OutputPath": "s3://mine/", "ProfilingIntervalInMilliseconds": 100, "DisableProfiler": True}
    client.create_training_job(**JOB, ProfilerConfig=own)
    assert wire.sent[0]["ProfilerConfig"] == {
        "S3OutputPath": "s3://ours/", "ProfilingIntervalInMilliseconds": 500, "DisableProfiler": False,
    }  # fmt: skip
    assert "has S3OutputPath, ProfilingIntervalInMilliseconds, DisableProfiler: replaced" in caplog.text
    caplog.clear()
    default = {"S3OutputPath": JOB["OutputDataConfig"]["S3OutputPath"], "DisableProfiler": False}
    client.create_training_job(**JOB, ProfilerConfig=default)
    assert not caplog.records


def test_an_attached_configuration_that_switches_off_is_sent_alone(wire, caplog):
    client = wire.client()
    attach(client, ProfilerConfig(disable_profiler=True))
    client.create_training_job(
        **JOB, ProfilerConfig={"S3OutputPath": "s3://b/", "ProfilingIntervalInMilliseconds": 100}
    )
    assert wire.sent[0]["ProfilerConfig"] == {"DisableProfiler": True}
    assert "has ProfilingIntervalInMilliseconds: replaced" in caplog.text


@pytest.mark.parametrize("config", [{"S3OutputPth": "s3://b/"}, "s3://b/"])
def test_an_invalid_configuration_of_a_request_stays_an_error(wire, config):
    client = wire.client()
    attach(client, PROFILE)
    with pytest.raises((ConfigError, ParamValidationError), match=r"S3OutputPth: unknown|ProfilerConfig"):
        client.create_training_job(**JOB, ProfilerConfig=config)
    assert wire.sent == []


def test_a_session_profiles_jobs_of_its_later_clients_only(wire, caplog):
    caplog.set_level("INFO")
    before = wire.client()
    attachment = attach(wire.session, PROFILE)
    assert "every training job of this session" in caplog.text
    after = wire.client()
    for client in (before, after, Wire().client()):
        client.create_training_job(**JOB)
    assert [("ProfilerConfig" in request) for request in wire.sent] == [False, True]
    attachment.detach()
    wire.client().create_training_job(**JOB)
    assert "ProfilerConfig" not in wire.sent[-1]


def test_rejects_before_sending(wire):
    client = wire.client()
    attach(client, ProfilerConfig(disable_profiler=True), [RULE])
    with pytest.raises(ConfigError, match="DisableProfiler is true"):
        client.create_training_job(**JOB)
    far = Wire("me-central-1").client()
    attach(far, PROFILE)
    with pytest.raises(ConfigError, match="backend='agent'"):
        far.create_training_job(**JOB)
    assert wire.sent == []


def test_agent_uses_the_environment_and_sends_no_profiler_keys():
    wire = Wire("me-central-1")
    client = wire.client()
    attach(client, PROFILE, backend="agent")
    client.create_training_job(**JOB)
    (request,) = wire.sent
    assert not {"ProfilerConfig", "ProfilerRuleConfigurations"} & request.keys()
    assert (request["Environment"]["MINE"], request["Environment"]["SM_PROFILER_AUTO"]) == ("1", "1")
    carried = load_profile(config_from_environment(request["Environment"]))
    assert (carried.s3_output_path, carried.kms_key_id) == ("s3://bucket/out", "key")
    assert carried.collectors["python"].start_step == 4


DEFINITION = {
    "AlgorithmSpecification": {"TrainingImage": "i", "TrainingInputMode": "File"},
    "RoleArn": JOB["RoleArn"],
    "OutputDataConfig": JOB["OutputDataConfig"],
    "StoppingCondition": {"MaxRuntimeInSeconds": 1},
}
TUNING = {
    "HyperParameterTuningJobName": "tune",
    "HyperParameterTuningJobConfig": {"Strategy": "Random", "ResourceLimits": {"MaxParallelTrainingJobs": 1}},
}


def test_tuning_jobs_need_the_agent(wire, caplog):
    client = wire.client()
    with attach(client, PROFILE):
        client.create_hyper_parameter_tuning_job(**TUNING, TrainingJobDefinition=DEFINITION)
    assert "backend='agent'" in caplog.text
    assert wire.sent == [{**TUNING, "TrainingJobDefinition": DEFINITION}]
    attach(client, PROFILE, backend="agent")
    client.create_hyper_parameter_tuning_job(**TUNING, TrainingJobDefinition=DEFINITION)
    client.create_hyper_parameter_tuning_job(**TUNING, TrainingJobDefinitions=[DEFINITION, DEFINITION])
    one, two = wire.sent[1:]
    for definition in (one["TrainingJobDefinition"], *two["TrainingJobDefinitions"]):
        assert load_profile(config_from_environment(definition["Environment"])).s3_output_path == "s3://bucket/out"
    crowded = {**DEFINITION, "Environment": {f"V{n}": "x" for n in range(46)}}
    with pytest.raises(ConfigError, match="accepts 48"):
        client.create_hyper_parameter_tuning_job(**TUNING, TrainingJobDefinition=crowded)


def test_agent_environment_of_a_custom_launcher():
    environment = agent_environment(PROFILE, {"MINE": "1"}, s3_output_path="s3://b")
    assert {name for name in environment if len(environment[name]) > 512} == set()
    assert "SM_PROFILER_CONFIG" not in environment, "a full configuration needs more than one variable"
    assert config_from_environment(environment)
    short = agent_environment(ProfilerConfig("s3://b"))
    assert json.loads(short["SM_PROFILER_CONFIG"]) == {"S3OutputPath": "s3://b", "DisableProfiler": False}
    assert agent_environment(ProfilerConfig(disable_profiler=True), {"A": "1"}) == {"A": "1"}


def test_agent_refuses_a_profile_that_would_be_lost():
    with pytest.raises(ConfigError, match="lost with the container: pass s3_output_path="):
        agent_environment(PROFILE)
    with pytest.raises(ConfigError, match="lost with the container"):
        agent_environment(ProfilerConfig())
    mounted = ProfilerConfig(framework_profile_params=FrameworkProfile("/mnt/lustre/profile"))
    assert "S3OutputPath" not in config_from_environment(agent_environment(mounted))
    assert agent_environment(PROFILE, network_isolation=True), "the service stores these files"


@pytest.mark.parametrize(
    "path",
    ["s3://My_Bucket/x", "s3://bucket-/x", "s3://a..b", "s3://192.168.0.1/x", f"s3://{'a' * 64}/x", "s3://xn--b/x"],
)
def test_agent_refuses_a_bucket_that_cannot_exist(path):
    with pytest.raises(ConfigError, match=r"S3OutputPath: no bucket can have the name in .*lowercase letters"):
        agent_environment(PROFILE, s3_output_path=path)
    assert "no bucket can have the name" in str(explain({"S3OutputPath": path}))


@pytest.mark.parametrize(
    "path",
    [
        "s3://a-bucket.of.mine/x",
        "s3://123",
        "s3://arn:aws:s3:us-east-1:123456789012:accesspoint/mine/x",
        "s3://b--use1-az4--x-s3/x",
    ],
)
def test_agent_accepts_buckets_and_access_points(path):
    assert agent_environment(PROFILE, s3_output_path=path)


@pytest.mark.parametrize("path", ["bucket/x", "https://bucket/x", "s3:/bucket/x", "s3:///x", "s3://", "s3://a b/x", 5])
def test_agent_refuses_a_path_that_cannot_work(path, wire):
    with pytest.raises(ConfigError, match=r"S3OutputPath: .* is not an S3 URI such as s3://bucket/prefix"):
        agent_environment(ProfilerConfig(path))
    client = wire.client()
    with pytest.raises(ConfigError, match="not an S3 URI"):
        attach(client, ProfilerConfig(path), backend="agent")
    attach(client, PROFILE, backend="agent")
    if isinstance(path, str):
        with pytest.raises(ConfigError, match="not an S3 URI"):
            client.create_training_job(**{**JOB, "OutputDataConfig": {"S3OutputPath": path}})
    assert wire.sent == []


def test_the_service_refuses_a_path_that_cannot_work_at_once(wire):
    with pytest.raises(ConfigError, match="S3OutputPath: 'bucket/x' does not match"):
        attach(wire.client(), ProfilerConfig("bucket/x"))


@pytest.mark.parametrize("backend", ["service", "agent"])
def test_attach_refuses_wrong_objects_at_once(backend, wire):
    with pytest.raises(ConfigError, match=r"not FrameworkProfile: ProfilerConfig\(framework_profile_params=…\)"):
        attach(wire.session, FrameworkProfile(), backend=backend)
    with pytest.raises(ConfigError, match=r"not one ProfilerRule: rules=\[rule\]"):
        attach(wire.session, PROFILE, RULE, backend=backend)
    with pytest.raises(ConfigError, match="rules must be a list of ProfilerRule objects, not str"):
        attach(wire.session, PROFILE, "ProfilerReport", backend=backend)
    with pytest.raises(ConfigError, match="rules must be ProfilerRule objects, not str"):
        to_request(PROFILE, ["ProfilerReport"])


class PipelineVariable:
    """Pipeline variables are recognized by their class name, without either SDK."""


def test_agent_rejects_pipeline_variables():
    with pytest.raises(ConfigError, match="S3OutputPath: only known when the pipeline runs"):
        agent_environment(PROFILE, s3_output_path=PipelineVariable())


def test_rejects_a_client_of_another_service(wire):
    with pytest.raises(ConfigError, match="not one of s3"):
        attach(wire.session.client("s3"), PROFILE)
