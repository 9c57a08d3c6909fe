"""to_request: requests for boto3, and errors for what the service would reject."""

import json
import warnings
from contextlib import nullcontext

import boto3
import pytest
from botocore.stub import Stubber

from sm_profiler.debugger import (
    DataloaderProfilingConfig,
    FrameworkProfile,
    Profiler,
    ProfilerConfig,
    ProfilerRule,
    get_default_profiler_processing_job,
    rule_configs,
)
from sm_profiler.errors import ConfigError
from sm_profiler.launch import agent_environment, attach, check_request, to_request

pytestmark = [
    pytest.mark.filterwarnings("ignore:You are using the SageMaker Python SDK v2"),
    pytest.mark.filterwarnings("ignore:the request has no S3 path"),
]

REPORT = ProfilerRule.sagemaker(rule_configs.ProfilerReport())
JOB = {
    "TrainingJobName": "job",
    "RoleArn": "arn:aws:iam::123456789012:role/r",
    "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"},
}


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "SM_PROFILER_RULE_IMAGE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SM_PROFILER_SETTINGS", str(tmp_path / "settings.json"))
    return monkeypatch


def test_default_is_system_metrics_only():
    assert to_request() == {"ProfilerConfig": {"DisableProfiler": False}}


@pytest.mark.sdk2
def test_keys_have_the_sdks_order():
    config = ProfilerConfig(system_monitor_interval_millis=200, framework_profile_params=FrameworkProfile(start_step=2))
    request = to_request(config, [REPORT], region="us-west-2", s3_output_path="s3://b/p")
    assert list(request) == ["ProfilerConfig", "ProfilerRuleConfigurations"]
    assert list(request["ProfilerConfig"]) == [
        "S3OutputPath",
        "DisableProfiler",
        "ProfilingIntervalInMilliseconds",
        "ProfilingParameters",
    ]
    assert request["ProfilerRuleConfigurations"] == [
        {
            "RuleConfigurationName": "ProfilerReport",
            "RuleEvaluatorImage": "895741380848.dkr.ecr.us-west-2.amazonaws.com/sagemaker-debugger-rules:latest",
            "RuleParameters": {"rule_to_invoke": "ProfilerReport"},
        }
    ]
    assert config.s3_output_path is None, "arguments are not changed"
    assert REPORT.image_uri == "DEFAULT_RULE_EVALUATOR_IMAGE"


def test_botocore_accepts_it_for_create_and_update():
    client = boto3.client(
        "sagemaker", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b"
    )  # none
    rule = ProfilerRule.custom("mine", "image:1", "ml.m5.large", 10)
    request = to_request(ProfilerConfig(framework_profile_params=FrameworkProfile()), [rule], s3_output_path="s3://b")
    with Stubber(client) as stub:
        stub.add_response("create_training_job", {"TrainingJobArn": "a" * 40}, {**JOB, **request})
        client.create_training_job(**JOB, **request)
        stub.add_response("update_training_job", {"TrainingJobArn": "a" * 40}, {"TrainingJobName": "job", **request})
        client.update_training_job(TrainingJobName="job", **request)
        stub.assert_no_pending_responses()


def test_the_configurations_path_takes_precedence_and_a_disabled_one_has_none():
    assert (
        to_request(ProfilerConfig(s3_output_path="s3://own"), s3_output_path="s3://other")["ProfilerConfig"][
            "S3OutputPath"
        ]
        == "s3://own"
    )
    assert to_request(ProfilerConfig(disable_profiler=True), s3_output_path="s3://b") == {
        "ProfilerConfig": {"DisableProfiler": True}
    }


@pytest.mark.parametrize("config", [None, ProfilerConfig(), {"DisableProfiler": False}])
def test_a_request_without_a_path_is_warned_of(config):
    with pytest.warns(UserWarning, match="no S3 path for the profile: pass s3_output_path=") as caught:
        to_request(config)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        to_request(config, s3_output_path="s3://b")
        to_request(ProfilerConfig(disable_profiler=True))
        to_request({"S3OutputPath": "s3://own"})


def test_accepts_the_apis_object():
    assert (
        to_request({"DisableProfiler": False, "S3OutputPath": "s3://b"})["ProfilerConfig"]["S3OutputPath"] == "s3://b"
    )


@pytest.mark.sdk2
def test_accepts_the_sdks_objects():
    import sagemaker.debugger as theirs

    config = theirs.ProfilerConfig(profile_params=theirs.Profiler())
    rule = theirs.ProfilerRule.sagemaker(theirs.rule_configs.ProfilerReport())
    assert to_request(config, [rule], region="us-east-1") == to_request(
        ProfilerConfig(profile_params=Profiler()), [REPORT], region="us-east-1"
    )


def test_uses_the_registered_image(environment):
    environment.setenv("SM_PROFILER_RULE_IMAGE", "own.{region}/rules:1")
    request = to_request(None, [REPORT], region="eu-west-3")
    assert request["ProfilerRuleConfigurations"][0]["RuleEvaluatorImage"] == "own.eu-west-3/rules:1"


@pytest.mark.sdk2
def test_awss_rules_have_no_instance_type_but_its_processing_job_has():
    rules = [
        ProfilerRule.sagemaker(rule_configs.CPUBottleneck(), instance_type="ml.m5.large", volume_size_in_gb=9),
        get_default_profiler_processing_job(),
    ]
    built_in, processing = to_request(None, rules, region="us-east-1")["ProfilerRuleConfigurations"]
    assert "InstanceType" not in built_in
    assert "VolumeSizeInGB" not in built_in
    assert (processing["InstanceType"], processing["VolumeSizeInGB"]) == ("ml.m5.4xlarge", 128)
    assert "detailed-profiler-processing" in processing["RuleEvaluatorImage"]


class FakeSession:
    """A boto3 session that records its uploads."""

    region_name = "us-east-1"

    def __init__(self, *, broken=False):
        self.uploads = []
        self.broken = broken

    def client(self, name):
        assert name in ("s3", "sts")
        return self

    def upload_file(self, path, bucket, key):
        if self.broken:
            raise OSError("no\nway")
        self.uploads.append((path, bucket, key))

    def get_caller_identity(self):
        return {"Account": "123456789012"}


class Mine:
    """The rule that `custom` names, for tests that upload this file."""


def custom(source):
    return ProfilerRule.custom("mine", "image:1", "ml.m5.large", 10, source=source, rule_to_invoke="Mine")


def test_uploads_a_local_rule_source(tmp_path):
    source = tmp_path / "rules.py"
    source.write_text("class Mine: ...")
    for path, bucket, prefix in ((None, "sagemaker-us-east-1-123456789012", "mine/"), ("s3://b/p/", "b", "p/mine/")):
        session = FakeSession()
        request = to_request(None, [custom(str(source))], session=session, s3_output_path=path)
        ((uploaded, to, key),) = session.uploads
        assert (uploaded, to) == (str(source), bucket)
        assert key.startswith(prefix)
        assert key.endswith("/rules.py")
        assert request["ProfilerRuleConfigurations"][0]["RuleParameters"] == {
            "source_s3_uri": f"s3://{to}/{key}",
            "rule_to_invoke": "Mine",
        }


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("class Yours: ...\nclass Ours: ...", r"rules\.py has no class Mine; it has: Yours, Ours"),
        ("", r"rules\.py has no class Mine; it has: no class"),
        ("class Mine: ...", ""),
        ("from other import Yours as Mine", ""),
        ("from other import *", ""),
        ("Mine = type('Mine', (), {})", ""),
        ("if True:\n    class Mine: ...", ""),
        ("class Mine(:", "cannot be read as Python"),
    ],
)
def test_a_rule_source_without_the_class_is_refused_before_it_is_uploaded(tmp_path, text, refused):
    """The rule job failed minutes later."""
    source, session = tmp_path / "rules.py", FakeSession()
    source.write_text(text)
    if refused:
        with pytest.raises(ConfigError, match=refused):
            to_request(None, [custom(str(source))], session=session)
        assert not session.uploads
    else:
        to_request(None, [custom(str(source))], session=session)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: to_request("config"), "must be a ProfilerConfig, not str"),
        (
            lambda: to_request(ProfilerConfig),
            "must be a ProfilerConfig object, not the class ProfilerConfig: ProfilerConfig(…)",
        ),
        (lambda: to_request(None, ProfilerRule), "must be a list of ProfilerRule objects, not the class ProfilerRule"),
        (lambda: to_request(None, [ProfilerRule]), "must be ProfilerRule objects, not the class ProfilerRule"),
        (lambda: to_request(None, ["rule"]), "ProfilerRule objects, not str"),
        (lambda: to_request(None, [REPORT]), "region="),
        (lambda: to_request(None, [custom("missing.py")]), "neither an S3 URI nor a local file"),
        (lambda: to_request(None, [custom(__file__)]), "pass session="),
        (
            lambda: to_request(None, [custom(__file__)], session=FakeSession(broken=True)),
            "could not be uploaded: no way",
        ),
        (lambda: to_request(ProfilerConfig(disable_profiler=True), [custom("s3://b/x.py")]), "DisableProfiler is true"),
        (lambda: to_request(None, [custom("s3://b/x.py")] * 2), "two rules are named mine"),
        (lambda: to_request({"ProfilingIntervalInMilliseconds": 300}), "300 is not one of 100, 200"),
        (lambda: to_request({"S3OutputPath": "bucket/path"}), "S3OutputPath"),
        (lambda: to_request(None, region="me-central-1"), "backend='agent'"),
        (lambda: to_request({"ProfilingParameters": {str(n): "v" for n in range(21)}}), "at most 20"),
        (lambda: to_request(None, [ProfilerRule.custom("m", "i" * 256, "ml.m5.large", 1)]), "at most 255"),
        (
            lambda: to_request(None, [ProfilerRule.custom(f"m{n}", "i", "ml.m5.large", 1) for n in range(21)]),
            "21 entries, at most 20",
        ),
        (
            lambda: to_request(
                None, [ProfilerRule.custom("m", "i", "ml.m5.large", 1, rule_parameters={str(n): n for n in range(101)})]
            ),
            "101 entries, at most 100",
        ),
        (
            lambda: to_request(
                ProfilerConfig(
                    framework_profile_params=FrameworkProfile(
                        dataloader_profiling_config=DataloaderProfilingConfig(metrics_regex="x" * 250)
                    )
                )
            ),
            "at most 256",
        ),
    ],
)
def test_reports_the_reason_in_one_line(call, message):
    with pytest.raises(ConfigError) as caught:
        call()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.sdk2
def test_reports_a_region_without_rule_image(monkeypatch):
    with pytest.raises(ConfigError, match=r"unknown region mars-1$"):
        to_request(None, [REPORT], region="mars-1")
    with pytest.raises(ConfigError, match=r"unknown region eu-wset-1: did you mean eu-west-1 or us-west-1\?$"):
        to_request(None, [REPORT], region="eu-wset-1")
    monkeypatch.setattr("sm_profiler.storage.s3.unknown_region", lambda _name: "")  # a region that is new
    with pytest.raises(
        ConfigError, match=r"AWS has no rule image for mars-1 \(.*newer regions\. …\)$"
    ):  # no word is cut
        to_request(None, [REPORT], region="mars-1")


class PipelineVariable:
    """Pipeline variables are recognized by their class name, without either SDK."""


def test_keeps_pipeline_variables():
    path, disabled = PipelineVariable(), PipelineVariable()
    request = to_request(ProfilerConfig(s3_output_path=path, disable_profiler=disabled))
    assert request["ProfilerConfig"]["DisableProfiler"] is disabled
    given = to_request(ProfilerConfig(s3_output_path=path))["ProfilerConfig"]["S3OutputPath"]
    assert given is path


def test_check_request_validates_all_parameters():
    assert check_request("CreateTrainingJob", JOB) == []
    problems = check_request(
        "CreateTrainingJob", {"TrainingJobName": "-", "Colour": 1, "Environment": {"a b": "x" * 513}}
    )
    assert [problem.partition(":")[0] for problem in problems] == [
        "RoleArn",
        "OutputDataConfig",
        "TrainingJobName",
        "Colour",
        "Environment key 'a b'",
        "Environment.a b",
    ]
    assert check_request("CreateTrainingJob", {"TrainingJobName": 5}, only=["TrainingJobName"]) == [
        "TrainingJobName: expected a string, found 5"
    ]
    wrong = {**JOB, "ResourceConfig": {"InstanceType": "ml.huge", "InstanceCount": -1, "VolumeSizeInGB": True}}
    assert len(check_request("CreateTrainingJob", wrong)) == 3
    with pytest.raises(ConfigError, match="has no SageMaker operation"):
        check_request("CreateNothing", {})


def test_the_default_configuration_is_within_the_apis_limits():
    request = to_request(
        ProfilerConfig(framework_profile_params=FrameworkProfile(duration=1e300)), s3_output_path="s3://b"
    )
    assert check_request("CreateTrainingJob", {**JOB, **request}) == []
    assert json.dumps(request)


SLOW = ProfilerConfig(
    framework_profile_params=FrameworkProfile(
        dataloader_profiling_config=DataloaderProfilingConfig(start_step=2, metrics_regex="(a+)+$")
    )
)


def test_what_explain_calls_wrong_is_refused_before_a_job_is_paid_for():
    (wrong,) = SLOW.explain().wrong
    session = boto3.Session(region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
    calls = (
        lambda: to_request(SLOW, s3_output_path="s3://b/p"),
        lambda: agent_environment(SLOW, s3_output_path="s3://b/p"),
        *(lambda backend=backend: attach(session, SLOW, backend=backend) for backend in ("service", "agent")),
    )
    for call in calls:
        with pytest.raises(ConfigError) as caught:
            call()
        assert str(caught.value) == f"the configuration is wrong: {wrong}"


@pytest.mark.parametrize(
    ("image", "refused"), [("mine.dkr.ecr.us-east-1.amazonaws.com/rules:1", True), ("other/image:1", False)]
)
def test_a_misspelt_rule_of_our_image_is_refused(environment, image, refused):
    environment.setenv("SM_PROFILER_RULE_IMAGE", "mine.dkr.ecr.{region}.amazonaws.com/rules:1")

    def made(rule):
        return ProfilerRule.custom("mine", image, "ml.m5.large", 10, rule_parameters={"rule_to_invoke": rule})

    made("OfAnotherPackage")
    made("ProfilerReport")
    with pytest.raises(ConfigError, match="did you mean ProfilerReport") if refused else nullcontext():
        made("ProfilerReprt")
