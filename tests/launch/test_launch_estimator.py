"""SDK v2's Estimators of every kind with sm-profiler's objects: requests to create and to update jobs."""

import contextlib
import json
import warnings
from types import SimpleNamespace

import boto3
import pytest
from moto import mock_aws

from sm_profiler.config import config_from_environment, load_profile
from sm_profiler.debugger import FrameworkProfile, ProfilerConfig, ProfilerRule, rule_configs
from sm_profiler.debugger.images import AwsImage
from sm_profiler.errors import ConfigError
from sm_profiler.launch import attach, check_request
from sm_profiler.launch.attachment import attach_estimator

pytestmark = [
    pytest.mark.sdk2,
    # the SDK's end-of-life notice for version 2, and warnings of its dependencies
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning:sagemaker"),
]
ROLE = "arn:aws:iam::123456789012:role/r"


@pytest.fixture
def wire(monkeypatch, tmp_path):
    """A session, and the requests that it sends."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SM_PROFILER_RULE_IMAGE", raising=False)
    monkeypatch.setenv("SM_PROFILER_SETTINGS", str(tmp_path / "settings.json"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('hello')")
    with mock_aws():
        boto_session = boto3.Session()
        boto_session.client("s3").create_bucket(Bucket="bucket")
        yield Wire(boto_session)


class Wire:
    def __init__(self, boto_session):
        import sagemaker
        from sagemaker.workflow.pipeline_context import PipelineSession

        with contextlib.suppress(ImportError):  # the first releases have no telemetry
            from sagemaker.telemetry import telemetry_logging

            telemetry_logging._send_telemetry_request = lambda *_args, **_kwargs: None
        self.sent = []
        boto_session.events.register("before-call.sagemaker", self.keep)
        self.session = sagemaker.Session(boto_session=boto_session, default_bucket="bucket")
        self.pipeline_session = PipelineSession(boto_session=boto_session, default_bucket="bucket")

    def keep(self, model, params, **_kwargs):
        self.sent.append((model.name, json.loads(params["body"])))
        if model.name == "UpdateTrainingJob":  # moto does not implement it
            return SimpleNamespace(status_code=200), {"TrainingJobArn": "arn:aws:sagemaker:us-east-1:123456789012:x"}
        return None

    def last(self, operation="CreateTrainingJob"):
        return [request for name, request in self.sent if name == operation][-1]

    def estimator(self, kind="generic", session=None, **more):
        common = {
            "role": ROLE,
            "instance_type": "ml.m5.xlarge",
            "instance_count": 1,
            "sagemaker_session": session or self.session,
            **more,
        }
        if kind == "pytorch":
            from sagemaker.pytorch import PyTorch

            return PyTorch(entry_point="train.py", framework_version="2.6.0", py_version="py312", **common)
        if kind == "tensorflow":
            from sagemaker.tensorflow import TensorFlow

            return TensorFlow(entry_point="train.py", framework_version="2.18", py_version="py310", **common)
        if kind == "huggingface":
            from sagemaker.huggingface import HuggingFace

            return HuggingFace(
                entry_point="train.py",
                transformers_version="4.49.0",
                pytorch_version="2.5.1",
                py_version="py311",
                **{**common, "instance_type": "ml.g5.xlarge"},
            )
        from sagemaker.estimator import Estimator

        return Estimator(image_uri="123456789012.dkr.ecr.us-east-1.amazonaws.com/own:1", **common)


def profile():
    return ProfilerConfig(
        system_monitor_interval_millis=500, framework_profile_params=FrameworkProfile(start_step=5, num_steps=2)
    )


def report():
    return ProfilerRule.sagemaker(rule_configs.ProfilerReport())


KINDS = ["generic", "pytorch", "tensorflow", "huggingface"]


@pytest.mark.parametrize("kind", KINDS)
def test_sends_the_same_request_as_with_the_sdks_objects(wire, kind, caplog):
    import sagemaker.debugger as theirs

    own = wire.estimator(kind, profiler_config=profile(), rules=[report()])
    own.fit(wait=False)
    ours = wire.last()
    assert "ramework profiling" not in caplog.text
    framework = theirs.FrameworkProfile(start_step=5, num_steps=2)
    wire.estimator(
        kind,
        profiler_config=theirs.ProfilerConfig(system_monitor_interval_millis=500, framework_profile_params=framework),
        rules=[theirs.ProfilerRule.sagemaker(theirs.rule_configs.ProfilerReport())],
    ).fit(wait=False)
    for key in ("ProfilerConfig", "ProfilerRuleConfigurations"):
        assert json.dumps(ours[key]) == json.dumps(wire.last()[key])
    assert check_request("CreateTrainingJob", ours) == []
    assert own.latest_job_profiler_artifacts_path() == f"s3://bucket/{ours['TrainingJobName']}/profiler-output"


def test_sorts_profiler_and_debugger_rules(wire):
    import sagemaker.debugger as theirs

    debugging = theirs.Rule.sagemaker(theirs.rule_configs.vanishing_gradient())
    builtin = theirs.ProfilerRule.sagemaker(theirs.rule_configs.CPUBottleneck())
    wire.estimator(profiler_config=profile(), rules=[report(), debugging, builtin]).fit(wait=False)
    names = [rule["RuleConfigurationName"] for rule in wire.last()["ProfilerRuleConfigurations"]]
    assert names == ["ProfilerReport", "CPUBottleneck"]
    assert len(wire.last()["DebugRuleConfigurations"]) == 1


def test_sends_the_registered_image(wire, monkeypatch):
    rule = report()
    monkeypatch.setenv("SM_PROFILER_RULE_IMAGE", "1.dkr.ecr.{region}.amazonaws.com/own:2")
    wire.estimator(profiler_config=profile(), rules=[rule]).fit(wait=False)
    assert (
        wire.last()["ProfilerRuleConfigurations"][0]["RuleEvaluatorImage"] == "1.dkr.ecr.us-east-1.amazonaws.com/own:2"
    )


def test_updates_a_running_job(wire, caplog):
    estimator = wire.estimator("pytorch", profiler_config=ProfilerConfig(disable_profiler=True))
    estimator.fit(wait=False)
    estimator.update_profiler(
        rules=[report()], framework_profile_params=FrameworkProfile(duration=9), system_monitor_interval_millis=1000
    )
    update = wire.last("UpdateTrainingJob")
    assert update["ProfilerConfig"]["ProfilingParameters"]["DetailedProfilingConfig"] == '{"Duration": 9, }'
    assert update["ProfilerRuleConfigurations"][0]["RuleConfigurationName"] == "ProfilerReport"
    assert "ramework profiling" not in caplog.text
    estimator.update_profiler(disable_framework_metrics=True)
    assert wire.last("UpdateTrainingJob")["ProfilerConfig"]["ProfilingParameters"] == {}
    estimator.enable_default_profiling()
    assert wire.last("UpdateTrainingJob")["ProfilerConfig"]["DisableProfiler"] is False
    estimator.disable_profiling()
    assert wire.last("UpdateTrainingJob")["ProfilerConfig"] == {"DisableProfiler": True}


def attached_request(wire, estimator, *arguments, **keywords):
    attach(estimator, *arguments, **keywords)
    estimator.fit(wait=False)
    return wire.last()


def test_attach_sets_the_constructors_arguments(wire):
    estimator = wire.estimator("pytorch", environment={"MINE": "1"})
    config, rule = profile(), report()
    with attach(estimator, config, [rule]):
        estimator.fit(wait=False)
        assert wire.last()["ProfilerConfig"]["S3OutputPath"] == "s3://bucket/"
        assert wire.last()["ProfilerRuleConfigurations"][0]["RuleConfigurationName"] == "ProfilerReport"
        assert wire.last()["Environment"] == {"MINE": "1", "SM_PROFILER_AUTO": "1"}
    assert config.s3_output_path is None
    assert rule.image_uri == "DEFAULT_RULE_EVALUATOR_IMAGE"
    assert (estimator.profiler_config, estimator.rules, estimator.environment) == (None, None, {"MINE": "1"})


def test_attach_warns_of_what_it_replaces_and_keeps_debugger_rules(wire):
    import sagemaker.debugger as theirs

    debugging = theirs.Rule.sagemaker(theirs.rule_configs.vanishing_gradient())
    estimator = wire.estimator(
        profiler_config=ProfilerConfig(system_monitor_interval_millis=100), rules=[debugging, report()]
    )
    with pytest.warns(UserWarning, match="replaced|tensors") as warned:
        attach(estimator, profile(), [ProfilerRule.sagemaker(rule_configs.CPUBottleneck())])
    texts = [str(one.message) for one in warned]
    assert any("rules are replaced: ProfilerReport" in text for text in texts)
    assert any(
        "VanishingGradient: rules on tensors, which sm-profiler neither records nor judges" in text for text in texts
    )
    assert any("profiler_config is replaced: ProfilingIntervalInMilliseconds" in text for text in texts)
    assert [rule.name for rule in estimator.rules] == ["VanishingGradient", "CPUBottleneck"]


def test_attach_keeps_what_the_configuration_lacks(wire, recwarn):
    estimator = wire.estimator(profiler_config=ProfilerConfig("s3://mine/", 100))
    before = list(recwarn)
    config = profile()
    config.system_monitor_interval_millis = None
    request = attached_request(wire, estimator, config)
    assert request["ProfilerConfig"]["S3OutputPath"] == "s3://mine/"
    assert request["ProfilerConfig"]["ProfilingIntervalInMilliseconds"] == 100
    assert "ProfilingParameters" in request["ProfilerConfig"]
    assert not any("replaced" in str(one.message) for one in recwarn if one not in before)


def test_attach_warns_of_a_profiler_that_it_switches_on(wire):
    estimator = wire.estimator(disable_profiler=True)
    with pytest.warns(UserWarning, match="disable_profiler=True is replaced: the profiler is switched on"):
        attach(estimator, profile())
    assert estimator.disable_profiler is False


@pytest.mark.parametrize("kind", KINDS)
def test_agent_does_not_use_the_managed_service(wire, kind):
    estimator = wire.estimator(
        kind, environment={"MINE": "1"}, output_kms_key="alias/key", output_path="s3://bucket/path"
    )
    request = attached_request(wire, estimator, profile(), backend="agent")
    assert request["ProfilerConfig"] == {"DisableProfiler": True}
    assert "ProfilerRuleConfigurations" not in request
    environment = request["Environment"]
    assert environment["MINE"] == "1"
    assert environment["SM_PROFILER_AUTO"] == "1"
    carried = load_profile(config_from_environment(environment))
    assert carried.s3_output_path == "s3://bucket/path"
    assert carried.kms_key_id == "alias/key"
    assert carried.collectors["detailed"].start_step == 5
    assert carried.interval_ms == 500
    assert check_request("CreateTrainingJob", request) == []
    assert estimator.latest_job_profiler_artifacts_path() is None


def test_agent_works_on_unsupported_instances(wire):
    estimator = wire.estimator(instance_type="ml.trn1.2xlarge")
    with pytest.raises(ConfigError, match=r"ml\.trn1\.2xlarge: use attach"):
        attach(estimator, profile())
    request = attached_request(wire, estimator, profile(), backend="agent")
    assert request["Environment"]["SM_PROFILER_AUTO"] == "1"
    assert request["ProfilerConfig"] == {"DisableProfiler": True}


@pytest.mark.parametrize(
    ("more", "folder"),
    [
        ({}, "/opt/ml/output/data/sm-profiler"),
        ({"checkpoint_s3_uri": "s3://b/c"}, "/opt/ml/checkpoints/sm-profiler"),
        ({"checkpoint_s3_uri": "s3://b/c", "checkpoint_local_path": "/opt/ml/own/"}, "/opt/ml/own/sm-profiler"),
    ],
)
def test_network_isolation_uses_folders_that_the_service_stores(wire, more, folder):
    estimator = wire.estimator(enable_network_isolation=True, output_kms_key="k", **more)
    request = attached_request(wire, estimator, profile(), backend="agent")
    carried = load_profile(config_from_environment(request["Environment"]))
    assert (carried.local_path, carried.s3_output_path, carried.kms_key_id) == (folder, None, None)


def test_agent_warns_of_ignored_rules_and_replaced_variables(wire):
    estimator = wire.estimator(environment={"SM_PROFILER_CONFIG": "mine", "SM_PROFILER_CONFIGURED": "kept"})
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        attach(estimator, profile(), [report()], backend="agent")
    texts = [str(one.message) for one in warned]
    assert any("starts no rule jobs" in text for text in texts)
    assert any("had SM_PROFILER_CONFIG: replaced" in text for text in texts)
    assert "SM_PROFILER_CONFIG" not in estimator.environment, (
        "numbered parts are read only if SM_PROFILER_CONFIG is absent"
    )
    assert estimator.environment["SM_PROFILER_CONFIGURED"] == "kept"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attach(estimator, profile(), backend="agent")  # replaces nothing the second time


def test_rejects_too_many_variables(wire):
    estimator = wire.estimator(environment={f"V{n}": "x" for n in range(98)})
    with pytest.raises(ConfigError, match="the API accepts 100"):
        attach(estimator, profile(), backend="agent")


@pytest.mark.parametrize(
    ("docker", "backend", "message"),
    [
        (
            None,
            "agent",
            "local mode of the SDK needs Docker, which is not installed: run the job on 'sm-profiler local'",
        ),
        ("/usr/bin/docker", "service", "local mode of the SDK has no managed service: attach with backend='agent'"),
    ],
)
def test_local_mode_is_refused_in_one_line(monkeypatch, docker, backend, message):
    monkeypatch.setattr("sm_profiler.launch.attachment.shutil.which", lambda _: docker)
    estimator = SimpleNamespace(instance_type="local", rules=None, profiler_config=None)
    with pytest.raises(ConfigError) as refused:
        attach_estimator(estimator, ProfilerConfig(), [], backend)
    assert str(refused.value) == message


def test_works_in_a_pipeline(wire):
    from sagemaker.workflow.parameters import ParameterString
    from sagemaker.workflow.pipeline import Pipeline
    from sagemaker.workflow.steps import TrainingStep

    path = ParameterString("Where", default_value="s3://bucket/x")
    services = wire.estimator(
        "pytorch",
        session=wire.pipeline_session,
        profiler_config=ProfilerConfig(s3_output_path=path, framework_profile_params=FrameworkProfile()),
        rules=[report()],
    )
    agents = wire.estimator("pytorch", session=wire.pipeline_session)
    attach(agents, profile(), backend="agent")
    steps = [TrainingStep(name=name, step_args=one.fit()) for name, one in (("A", services), ("B", agents))]
    pipeline = Pipeline(name="p", parameters=[path], steps=steps, sagemaker_session=wire.pipeline_session)
    first, second = (step["Arguments"] for step in json.loads(pipeline.definition())["Steps"])
    assert first["ProfilerConfig"]["S3OutputPath"] == {"Get": "Parameters.Where"}
    assert first["ProfilerConfig"]["ProfilingParameters"]["LocalPath"] == "/opt/ml/output/profiler"
    assert first["ProfilerRuleConfigurations"][0]["RuleConfigurationName"] == "ProfilerReport"
    assert second["Environment"]["SM_PROFILER_AUTO"] == "1"
    assert load_profile(config_from_environment(second["Environment"])).interval_ms == 500


def test_does_not_warn_of_the_configuration_that_the_sdk_filled_in(wire):
    estimator = wire.estimator()
    estimator.fit(wait=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        attach(estimator, profile())


def test_profiles_the_trials_of_a_tuner(wire):
    from sagemaker.tuner import ContinuousParameter, HyperparameterTuner

    estimator = wire.estimator("pytorch")
    attach(estimator, profile(), backend="agent")
    metrics = [{"Name": "loss", "Regex": "loss: (.*)"}]
    ranges = {"rate": ContinuousParameter(0.1, 0.2)}
    HyperparameterTuner(estimator, "loss", ranges, metrics, max_jobs=2).fit({"x": "s3://bucket/x"}, wait=False)
    request = wire.last("CreateHyperParameterTuningJob")
    carried = load_profile(config_from_environment(request["TrainingJobDefinition"]["Environment"]))
    assert carried.collectors["detailed"].start_step == 5
    assert check_request("CreateHyperParameterTuningJob", request) == []


def test_a_tuner_of_an_estimator_with_the_service_backend_is_warned_of(wire, caplog):
    from sagemaker.tuner import ContinuousParameter, HyperparameterTuner

    def tune(estimator, name):
        metrics, ranges = [{"Name": "loss", "Regex": "loss: (.*)"}], {"rate": ContinuousParameter(0.1, 0.2)}
        tuner = HyperparameterTuner(estimator, "loss", ranges, metrics, max_jobs=2)
        tuner.fit({"x": "s3://bucket/x"}, job_name=name, wait=False)
        return [one.message for one in caplog.records if "its trials are not profiled" in one.message]

    first, second = wire.estimator("pytorch"), wire.estimator("pytorch")
    attachments = [attach(one, profile()) for one in (first, second)]
    assert len(tune(first, "service-tuner")) == 1, "one warning, however many Estimators are attached"
    for one in attachments:
        one.detach()
    caplog.clear()
    assert tune(first, "detached-tuner") == []


def test_rejects_other_objects(wire):
    with pytest.raises(ConfigError, match="not str"):
        attach("estimator", profile())
    with pytest.raises(ConfigError, match="'service' or 'agent'"):
        attach(wire.estimator(), profile(), backend="cloud")
    with pytest.raises(ConfigError, match="takes a ProfilerConfig"):
        attach(wire.estimator(), {"DisableProfiler": False})
    with pytest.raises(ConfigError, match="ProfilerRule objects"):
        attach(wire.estimator(), profile(), ["rule"])


def requested(estimator):
    """Return the warnings of a request."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        estimator.fit(wait=False)
    return [str(one.message) for one in found if "SM_PROFILER_AUTO" in str(one.message)]


def test_framework_metrics_without_the_switch_are_warned_of(wire):
    """The request was sent without a word, and AWS recorded system metrics alone."""
    (warning,) = requested(wire.estimator("pytorch", profiler_config=profile()))
    assert "attach(estimator" in warning


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("pytorch", {"profiler_config": profile(), "environment": {"SM_PROFILER_AUTO": "1"}}),
        ("pytorch", {"profiler_config": ProfilerConfig(system_monitor_interval_millis=500)}),
        ("generic", {"profiler_config": profile()}),  # its image may have the variable
        ("pytorch", {"profiler_config": profile(), "environment": {"SM_PROFILER_AUTO": "yes"}}),
    ],
)
def test_nothing_is_warned_of_where_the_hook_may_be_on(wire, kind, more):
    assert requested(wire.estimator(kind, **more)) == []


def test_attach_adds_the_switch_so_that_nothing_is_warned_of(wire):
    estimator = wire.estimator("pytorch")
    attach(estimator, profile(), [report()])
    assert requested(estimator) == []


AWS = "763104351884.dkr.ecr.us-east-1.amazonaws.com"


@pytest.mark.parametrize(
    ("image", "environment"),
    [
        (None, {"SM_PROFILER_AUTO": "0"}),
        (None, {"SM_PROFILER_AUTO": "maybe"}),
        (f"{AWS}/pytorch-training:2.6.0-gpu-py312-cu126-ubuntu22.04-sagemaker", None),
        (f"{AWS}/huggingface-pytorch-training:2.5.1-transformers4.49.0-gpu-py311-cu124-ubuntu22.04", {}),
        ("123456789012.dkr.ecr.us-east-1.amazonaws.com/own:1", {"SM_PROFILER_AUTO": "0"}),
    ],
)
def test_a_switch_that_is_off_is_warned_of_in_each_image(wire, image, environment):
    from sagemaker.estimator import Estimator

    more = {"profiler_config": profile(), "environment": environment}
    if image is None:
        estimator = wire.estimator("pytorch", **more)
    else:
        estimator = Estimator(
            image_uri=image,
            role=ROLE,
            instance_type="ml.m5.xlarge",
            instance_count=1,
            sagemaker_session=wire.session,
            **more,
        )
    (warning,) = requested(estimator)
    assert "SM_PROFILER_AUTO is not on in the Estimator's environment" in warning


@pytest.mark.parametrize("backend", ["service", "agent"])
def test_a_switch_that_is_off_is_replaced_with_a_warning(wire, backend):
    """The service backend sent it as it was."""
    estimator = wire.estimator("pytorch", environment={"SM_PROFILER_AUTO": "0", "MINE": "1"})
    with pytest.warns(UserWarning, match="the job's environment had SM_PROFILER_AUTO: replaced"):
        attach(estimator, profile(), backend=backend)
    assert (estimator.environment["SM_PROFILER_AUTO"], estimator.environment["MINE"]) == ("1", "1")


@pytest.mark.parametrize("backend", ["service", "agent"])
def test_versions_that_the_hook_does_not_support_are_warned_of(wire, backend):
    from sagemaker.pytorch import PyTorch

    estimator = PyTorch(
        entry_point="train.py",
        framework_version="1.13.1",
        py_version="py39",
        role=ROLE,
        instance_type="ml.m5.xlarge",
        instance_count=1,
        sagemaker_session=wire.session,
    )
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        attach(estimator, profile(), backend=backend)
        estimator.fit(wait=False)
    old = [str(one.message) for one in found if "PyTorch 1.13.1" in str(one.message)]
    assert len(old) == 1
    assert "PyTorch 1.13.1 (supported from 2.4 on) and Python 3.9 (supported from 3.10 on)" in old[0]


@pytest.mark.parametrize(
    ("image", "old"),
    [
        (f"{AWS}/pytorch-training:1.13.1-cpu-py39", "PyTorch 1.13.1 (supported from 2.4 on) and Python 3.9"),
        (
            f"{AWS}/pytorch-training:2.3.0-gpu-py311-cu121-ubuntu20.04-sagemaker",
            "PyTorch 2.3.0 (supported from 2.4 on)",
        ),
        (f"{AWS}/pytorch-training:2.10.0-gpu-py312-cu126", ""),
        (
            f"{AWS}/tensorflow-training:2.13.0-cpu-py310-ubuntu20.04-sagemaker",
            "TensorFlow 2.13.0 (supported from 2.18 on)",
        ),
        (f"{AWS}/huggingface-pytorch-training:2.1.0-transformers4.36.0-gpu-py310-cu121-ubuntu20.04", "PyTorch 2.1.0"),
        ("123456789012.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:mine", ""),
    ],
)
def test_the_versions_of_an_image_are_those_of_its_name(image, old):
    found = AwsImage.named(image)
    assert (found.too_old if found else "").startswith(old)
    assert bool(found and found.too_old) == bool(old)


@pytest.mark.parametrize(
    ("files", "warns"),
    [
        ({}, True),
        ({"requirements.txt": "numpy\n# sm-profiler\n"}, True),
        ({"requirements.txt": "numpy\nsm-profiler[aws,gpu]\n"}, False),
        ({"requirements.txt": "./wheels/sm_profiler-1.0-py3-none-any.whl"}, False),
        ({"requirements.txt": "-r more.txt"}, False),
    ],
)
def test_attach_warns_if_the_source_folder_does_not_install_the_agent(wire, tmp_path, files, warns):
    """AWS's images lack sm-profiler: the job ran without a profile, without a warning before it."""
    source = tmp_path / "src"
    source.mkdir()
    for name, text in {"train.py": "print(1)", **files}.items():
        (source / name).write_text(text)

    def warned(estimator, backend="agent"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            attach(estimator, profile(), backend=backend)
        return [str(one.message) for one in caught if "agent is not installed" in str(one.message)]

    found = warned(wire.estimator("pytorch", source_dir=str(source)))
    assert (
        found
        == [
            f"the agent is not installed by {source}, and AWS's images lack it: name sm-profiler[aws,gpu] in requirements.txt there"
        ]
        * warns
    )
    assert warned(wire.estimator("generic", entry_point="train.py", source_dir=str(source))) == []  # its own image
