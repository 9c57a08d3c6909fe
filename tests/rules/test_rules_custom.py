"""Examples of docs/custom-rules.md, parameters of custom rules, the old API and its actions."""

import json
import logging
import os
import re
import shlex
import subprocess
import sys

import boto3
import numpy as np
import pytest
from moto import mock_aws
from moto.sns.models import sns_backends

from sm_profiler.report.rule_runner import make_folds, write_for_runner
from sm_profiler.rules import (
    CPUBottleneck,
    NoMoreProfilerData,
    ProfilerTrial,
    Rule,
    RuleEvaluationConditionMet,
    StepOutlier,
    invoke_rule,
    run_folds,
)
from sm_profiler.rules.custom import own_parameters, write_report
from sm_profiler.rules.results import REPORTS, write_rule_reports
from sm_profiler.rules.rule import Actions
from sm_profiler.rules.rule_job import Settings, Status
from sm_profiler.rules.runner import Runner
from tests.support.rules import REPO, make_job, read

BLOCKS = re.findall(r"```python\n(.*?)```", (REPO / "docs/custom-rules.md").read_text(), re.DOTALL)
NEW, TRY, LAUNCH, OLD = BLOCKS
LOCALLY = re.search(
    r"^    (SM_PROFILER_ROOT=.*?rules run)$", (REPO / "docs/custom-rules.md").read_text(), re.DOTALL | re.MULTILINE
)[1]


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return make_job(tmp_path_factory.mktemp("job"), "--gpus", 2, "--minutes", 4, "--seed", 5)


def trial(tmp_path, job):
    return ProfilerTrial("mine", str(job), str(tmp_path / "out"), follow=False)


class TestDocumentedExamples:
    def test_rule_runs_on_a_folder(self, job, capsys, monkeypatch):
        monkeypatch.chdir(job.parent)
        (job.parent / "memory_margin.py").write_text(NEW)
        monkeypatch.syspath_prepend(job.parent)
        monkeypatch.delitem(sys.modules, "memory_margin", raising=False)
        exec(compile(TRY, "custom-rules.md", "exec"), {})  # noqa: S102 - the document's own lines
        found = capsys.readouterr().out
        assert "'RuleTriggered': 1" in found

    @pytest.mark.parametrize(("limit", "status"), [("20", Status.ISSUES), ("95", Status.NO_ISSUES)])
    def test_rule_runs_in_the_runner(self, job, tmp_path, limit, status):
        code = tmp_path / "memory_margin.py"
        code.write_text(NEW)
        settings = Settings(
            str(job), tmp_path / "out", rule="MemoryMargin", code=str(code), parameters={"limit": limit}
        )
        assert Runner(settings).run()[0] is status
        report = json.loads((tmp_path / "out/profiler-reports/MemoryMargin.json").read_text())
        system = read(job).system()
        assert report["Datapoints"] == np.count_nonzero(system.name.mask("MemoryUsedPercent")) > 400

    @pytest.mark.parametrize(
        ("parameter", "fires"),
        [("limit=20", 1), ("limit=95", 0), ("MemoryMargin_limit=20", 1), ("memorymargin_limit=95", 0)],
    )
    def test_runner_command_works_without_aws(self, job, tmp_path, parameter, fires):
        (tmp_path / "memory_margin.py").write_text(NEW)
        (tmp_path / "profiler-output").symlink_to(job)
        *variables, _, _, _ = words = shlex.split(LOCALLY.replace("\\\n", " "))
        assert words[-3:] == ["sm-profiler", "rules", "run"]
        assert "limit=20" in variables
        environment = dict(each.split("=", 1) for each in variables if each != "limit=20")
        environment |= dict([parameter.split("=")], SM_PROFILER_ROOT=str(tmp_path))
        subprocess.run(
            [sys.executable, "-m", "sm_profiler.rules.runner"],
            env={**os.environ, **environment},
            cwd=tmp_path,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        report = tmp_path / "processing/output/rule/profiler-output/profiler-reports/MemoryMargin.json"
        assert json.loads(report.read_text())["RuleTriggered"] == fires

    def test_launch_example_builds_a_rule_configuration(self):
        names = {}
        exec(compile(LAUNCH, "custom-rules.md", "exec"), names)  # noqa: S102 - the document's own lines
        request = names["custom"].to_profiler_rule_config_dict()
        assert request["RuleParameters"]["rule_to_invoke"] == "MemoryMargin"

    @pytest.mark.parametrize(("limit", "status"), [("0.1", Status.ISSUES), ("100", Status.NO_ISSUES)])
    def test_old_api_rule_runs_in_the_runner(self, job, tmp_path, limit, status):
        code = tmp_path / "long_steps.py"
        code.write_text(OLD)
        settings = Settings(str(job), tmp_path / "out", rule="LongSteps", code=str(code), parameters={"limit_s": limit})
        runner = Runner(settings, write_report=write_for_runner, make_folds=make_folds)
        found, details = runner.run()
        assert found is status
        fires = status is Status.ISSUES
        assert details == ("The condition of the rule LongSteps is met, first in minute 1" if fires else "")
        written = json.loads((settings.output / "profiler-reports/LongSteps.json").read_text())
        assert (written["RuleTriggered"], written["RuleParameters"]) == (int(fires), f"limit_s:{limit}")
        report = json.loads((settings.output / "report.json").read_text())
        assert report["rules"]["LongSteps"] == written
        assert "LongSteps" in (settings.output / "profiler-report.html").read_text()


class Counting(Rule):
    """Records its calls."""

    def __init__(self, base_trial, action_str="", meets_at=None):
        super().__init__(base_trial, action_str)
        self.meets_at, self.calls = meets_at, []

    def invoke_for_timerange(self, start_us, end_us, system_events, framework_events):
        self.calls.append((start_us, end_us, system_events, framework_events))
        return len(self.calls) - 1 == self.meets_at


class Sized:
    def __init__(self, limit="1", sized_by="x"):
        pass


class TestParameters:
    def test_environment_supplies_constructor_parameters(self, caplog):
        environ = {
            "PATH": "/bin",
            "http_proxy": "http://p",
            "rule_to_invoke": "Sized",
            "limit": "3",
            "limti": "4",
            "sized_by": "y",
            "CPUBottleneck_threshold": "5",
        }
        with caplog.at_level(logging.WARNING):
            assert own_parameters(Sized, {}, environ) == {"limit": "3", "sized_by": "y"}
        assert caplog.messages == [
            "ignoring variables that are not parameters of Sized: limti; it has: limit, sized_by",
        ]

    def test_configuration_overrides_environment(self, caplog):
        assert own_parameters(Sized, {"Sized_limit": "1"}, {"limit": "2"}) == {"limit": "1"}
        assert own_parameters(Sized, {"limits": "1"}, {"SIZED_LIMIT": "2"}) == {"limits": "1"}
        assert own_parameters(Sized, {}, {"sized_colour": "1"}) == {"colour": "1"}  # refused by build_rule
        assert caplog.messages == []


class TestOldApi:
    def test_windows_are_consecutive_until_the_end_of_the_data(self, tmp_path, job):
        rule = Counting(trial(tmp_path, job))
        invoke_rule(rule)
        starts = [start for start, *_ in rule.calls]
        assert starts == [starts[0] + 60_000_000 * index for index in range(len(starts))]
        assert len(starts) == 5  # the last, half minute too

    def test_job_shorter_than_a_minute_is_evaluated(self, tmp_path):
        rule = Counting(trial(tmp_path, make_job(tmp_path, "--minutes", 0.5)))
        invoke_rule(rule)
        assert len(rule.calls) == 1

    def test_events_have_the_attributes_of_the_old_library(self, tmp_path, job):
        rule = Counting(trial(tmp_path, job))
        invoke_rule(rule, end_step=1)
        _, _, system, framework = rule.calls[0]
        one = system[0]
        assert {one.type, one.node_id} <= {"cpu", "memory", "gpu", "i/o", "network", "algo-1"}
        assert isinstance(one.timestamp, float)
        assert one.dimension is not None
        step = next(event for event in framework if event.event_name.startswith("Step:ModeKeys"))
        assert isinstance(step.start_time, int)
        assert step.end_time == step.start_time + step.duration
        assert isinstance(step.event_args["step_num"], str)
        assert step.event_phase == step.event_name
        assert step.node_id == "algo-1-0"
        operator = next((event for event in framework if event.event_phase == "cpu_functions"), None)
        assert operator is None or isinstance(operator.event_args["step_num"], int)
        loader = next(event for event in framework if event.event_phase == "DataLoaderIter")
        assert loader.event_args["num_workers"] == 4
        assert loader.event_args["pin_memory"] is True

    def test_events_include_every_row_of_the_range(self, tmp_path, job):
        one, rows = trial(tmp_path, job), read(job).system()
        start, end = one.first_timestamp + 30_000_000, one.first_timestamp + 90_000_000
        inside = (rows.timestamp * 1e6 >= start) & (rows.timestamp * 1e6 <= end)
        found = one.get_system_metrics(start, end)
        assert [event.value for event in found] == rows.value[inside].tolist()
        events = read(job).events()
        overlapping = (events.start_us <= end) & (events.end_us >= start)
        assert len(one.get_framework_metrics(start, end)) == np.count_nonzero(overlapping)

    def test_earlier_ranges_can_be_requested_again(self, tmp_path, job):
        one = trial(tmp_path, job)
        first = one.first_timestamp
        early = len(one.get_system_metrics(first, first + 60_000_000))
        one.get_system_metrics(first + 86_400_000_000, first + 86_460_000_000)
        assert len(one.get_system_metrics(first, first + 60_000_000)) == early

    def test_met_condition_raises(self, tmp_path, job):
        rule = Counting(trial(tmp_path, job), meets_at=1)
        with pytest.raises(RuleEvaluationConditionMet) as met:
            invoke_rule(rule, raise_eval_cond=True)
        assert str(met.value) == "Evaluation of the rule Counting at step 1 resulted in the condition being met"
        assert (met.value.rule_name, met.value.step, met.value.end_of_rule) == ("Counting", 1, False)
        quiet = Counting(trial(tmp_path, job), meets_at=1)
        invoke_rule(quiet)
        assert len(quiet.calls) == 5

    def test_trial_attributes(self, tmp_path, job):
        one = trial(tmp_path, job)
        assert one.job_finished()
        assert one.path == str(job)
        assert one.first_timestamp % 60_000_000 == 0
        assert one.get_latest_timestamp() > one.first_timestamp
        assert one.temp_dir == str(tmp_path / "out/.sagemaker-ignore")
        with pytest.raises(NoMoreProfilerData):
            one.wait_for_data(1e18, 9e17)

    def test_waits_for_a_running_job(self, tmp_path):
        job = make_job(tmp_path, "--minutes", 2, "--no-end-marker")
        slept = []

        def sleep(seconds):
            slept.append(seconds)
            (job / "system/training_job_end.ts").touch()

        one = ProfilerTrial("mine", str(job), str(tmp_path / "out"), sleep=sleep)
        assert not one.job_finished()
        with pytest.raises(NoMoreProfilerData):
            one.wait_for_data(one.first_timestamp + 600_000_000, one.first_timestamp + 540_000_000)
        assert slept == [10.0]

    def test_built_in_rules_work_with_invoke_rule(self, tmp_path, job):
        slow = make_job(tmp_path, "--scenario", "cpu-bottleneck", "--gpus", 2, "--minutes", 4)
        rule = CPUBottleneck(trial(tmp_path, slow), threshold="30", patience="50")
        assert isinstance(rule, Rule)
        with pytest.raises(RuleEvaluationConditionMet, match="CPUBottleneck at step"):
            invoke_rule(rule, raise_eval_cond=True)
        assert rule.report["RuleTriggered"] > 0
        calm = StepOutlier(trial(tmp_path, job))
        invoke_rule(calm, raise_eval_cond=True)
        assert calm.report["Datapoints"] > 0

    def test_rule_without_a_method_is_rejected(self, tmp_path, job):
        with pytest.raises(NotImplementedError, match="neither invoke, invoke_at_step nor invoke_for_timerange"):
            invoke_rule(Rule(trial(tmp_path, job)))

    def test_errors_can_be_pickled(self):
        import pickle

        again = pickle.loads(pickle.dumps(RuleEvaluationConditionMet("Mine", 3, end_of_rule=True)))  # noqa: S301 - our own
        assert (again.rule_name, again.step, again.end_of_rule) == ("Mine", 3, True)


class TestActions:
    STOP = '[{"name": "StopTraining", "training_job_prefix": "my"}]'

    def called(self, monkeypatch, caplog, text, **environment):
        calls = []

        class SageMaker:
            @staticmethod
            def stop_training_job(**request):
                calls.append(request)

        monkeypatch.setattr("sm_profiler.storage.s3.create_api_client", lambda _: SageMaker)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        Actions(text, "Mine").invoke()
        return calls, caplog.text

    def test_stop_training_is_opt_in(self, monkeypatch, caplog):
        calls, text = self.called(monkeypatch, caplog, self.STOP, TRAINING_JOB_NAME="my-job")
        assert not calls
        assert "rule_allow_stop_training" in text

    def test_stop_training_stops_the_job(self, monkeypatch, caplog):
        allowed = {"TRAINING_JOB_NAME": "my-job", "SM_PROFILER_ALLOW_STOP_TRAINING": "1"}
        assert self.called(monkeypatch, caplog, self.STOP, **allowed)[0] == [{"TrainingJobName": "my-job"}]

    def test_stop_training_spares_other_jobs(self, monkeypatch, caplog):
        allowed = {"TRAINING_JOB_NAME": "other", "SM_PROFILER_ALLOW_STOP_TRAINING": "1"}
        assert self.called(monkeypatch, caplog, self.STOP, **allowed)[0] == []

    @pytest.mark.parametrize(
        ("text", "protocol", "attribute"),
        [
            ('{"name": "Email", "endpoint": "a@b.c"}', "email", "email"),
            ('[{"name": "sms", "endpoint": "+1555"}]', "sms", "phone_num"),
        ],
    )
    def test_messages_go_to_the_old_topic(self, monkeypatch, text, protocol, attribute):
        monkeypatch.setenv("AWS_REGION", "eu-west-1")
        monkeypatch.setenv("TRAINING_JOB_NAME", "my-job")
        with mock_aws():
            Actions(text, "Mine").invoke()
            Actions(text, "Mine").invoke()
            sns = boto3.client("sns", region_name="eu-west-1")
            (topic,) = sns.list_topics()["Topics"]
            assert topic["TopicArn"].endswith(":SMDebugRules")
            (subscription,) = sns.list_subscriptions()["Subscriptions"]
            assert subscription["Protocol"] == protocol
            sent = sns_backends["123456789012"]["eu-west-1"].topics[topic["TopicArn"]].sent_notifications
            assert len(sent) == 2
            _, message, subject, attributes, _ = sent[0]
            assert subject == "SMDebugRule:Mine fired"
            assert "my-job" in message
            assert attributes[attribute]["Value"] == subscription["Endpoint"]

    def test_a_message_that_cannot_be_sent_is_a_warning(self, monkeypatch, caplog):
        monkeypatch.setenv("AWS_REGION", "eu-west-1")
        with mock_aws():
            Actions('[{"name": "sms"}, {"name": "page", "endpoint": "x"}]', "Mine").invoke()
        assert "cannot send the sms message" in caplog.text
        assert "action 'page' is not supported" in caplog.text

    @pytest.mark.parametrize("text", [None, "", " ", "[]", "not json", "3", "[3]"])
    def test_invalid_or_empty_actions_are_ignored(self, monkeypatch, caplog, text):
        assert self.called(monkeypatch, caplog, text)[0] == []


def test_rule_needs_no_base_class(job):
    class Latest:
        at = 0

        def update(self, window):
            self.at = window.end_us

    rule = Latest()
    assert run_folds(read(job), [rule]) == {}
    assert rule.at > 0


def test_a_number_that_json_lacks_is_null_in_the_report_of_a_rule(tmp_path):
    found = {"Threshold": float("nan"), "Series": [1.0, float("inf"), -float("inf")]}
    write_report({**found, "Place": tmp_path}, "Own", str(tmp_path))
    write_rule_reports({"BuiltIn": found}, tmp_path)
    for rule, more in (("Own", {"Place": str(tmp_path)}), ("BuiltIn", {})):
        text = (tmp_path / REPORTS / f"{rule}.json").read_text()
        assert json.loads(text, parse_constant=pytest.fail) == {
            "Threshold": None, "Series": [1.0, None, None], **more,
        }  # fmt: skip
