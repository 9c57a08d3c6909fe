"""The container's main program: settings, following, stopping, status, custom rules."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sm_profiler.monitor.run_state import write_state
from sm_profiler.report.rule_runner import make_folds, write_for_runner
from sm_profiler.rules import RULES, RuleResults
from sm_profiler.rules import runner as runner_module
from sm_profiler.rules.custom import met_text
from sm_profiler.rules.rule_job import Settings, Status, read_settings
from sm_profiler.rules.runner import Judgement, Runner, main
from tests.support.rules import make_job

END = "training_job_end.ts"


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return make_job(
        tmp_path_factory.mktemp("job"),
        "--scenario",
        "cpu-bottleneck",
        "--gpus",
        2,
        "--minutes",
        5,
        "--interval-ms",
        200,
    )


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    return make_job(tmp_path_factory.mktemp("job"), "--minutes", 3)


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith(("SM_PROFILER", "SAGEMAKER_ENV", "rule_", "source_s3", "TRAINING_JOB")):
            monkeypatch.delenv(name)


def settings(tmp_path, source, **values):
    return Settings(source=str(source), output=tmp_path / "out", **values)


def evaluate(tmp_path, source, **values):
    made = settings(tmp_path, source, **values)
    status, details = Runner(made, poll_s=0.01).run()
    written = json.loads((made.output / "rule-status.json").read_text())
    assert written == {"RuleEvaluationStatus": status.value, "StatusDetails": details}
    assert (made.output / "profiler-report.html").exists()
    return status, details, made.output


def test_a_fold_of_the_report_that_fails_is_listed_with_the_rules_that_fail(tmp_path, calm):
    class Failing:
        def update(self, _window):
            raise KeyError("unexpected")

    written = []
    runner = Runner(
        settings(tmp_path, calm),
        write_report=lambda one: written.append(dict(one.results.broken)),
        make_folds=lambda: [Failing()],
    )
    runner.run()
    assert "KeyError" in written[-1]["Failing"]


class TestStatus:
    def test_issues_found(self, tmp_path, job):
        status, details, output = evaluate(tmp_path, job)
        assert (status, details) == (
            Status.ISSUES,
            "Evaluation of the rule ProfilerReport at step 6 resulted in the condition being met",
        )
        assert len(list((output / "profiler-reports").iterdir())) == len(RULES)

    def test_no_issues_found(self, tmp_path, calm):
        assert evaluate(tmp_path, calm)[:2] == (Status.NO_ISSUES, "")

    def test_the_verdict_decides_the_status(self, tmp_path, job, calm):
        def judging(source, **values):
            made = settings(tmp_path, source, **values)
            return Runner(made, write_report=write_for_runner, make_folds=make_folds).run()

        status, details = judging(job)
        assert status is Status.ISSUES
        assert details.startswith("INPUT_BOUND (")
        assert "Rules that fired: CPUBottleneck" in details
        assert judging(job, compat="service")[1].startswith("Evaluation of the rule ProfilerReport at step ")
        assert judging(job, rule="IOBottleneck", parameters={"patience": "10"})[0] is Status.NO_ISSUES
        status, details = judging(calm)
        assert (status, details.split()[0]) == (Status.NO_ISSUES, "COMPUTE_BOUND")

    def test_a_job_that_failed_is_an_issue(self, tmp_path, calm):
        """As for `report --fail-on issues`."""
        failed = tmp_path / "failed"
        shutil.copytree(calm, failed)
        write_state(failed, exit_code=3)
        made = settings(tmp_path, failed)
        status, details = Runner(made, write_report=write_for_runner, make_folds=make_folds).run()
        assert status is Status.ISSUES
        assert "exit code 3" in details

    @pytest.mark.parametrize(
        ("status", "expected"),
        [(Status.ISSUES, Status.ISSUES), (Status.NO_ISSUES, Status.NO_ISSUES), (None, Status.NO_ISSUES)],
    )
    def test_a_report_without_enough_data_leaves_the_status_to_the_rules(self, tmp_path, calm, status, expected):
        made = settings(tmp_path, calm)
        assert Runner(made, write_report=lambda _: Judgement(status, "because")).run() == (expected, "because")

    def test_chosen_rule_decides_the_status(self, tmp_path, job):
        status, details, _ = evaluate(tmp_path, job, rule="cpubottleneck", parameters={"patience": "100"})
        assert status is Status.ISSUES
        assert details.startswith("Evaluation of the rule CPUBottleneck at step ")
        assert (
            evaluate(tmp_path, job, rule="IOBottleneck", parameters={"IOBottleneck_patience": "10"})[0]
            is Status.NO_ISSUES
        )

    def test_a_rule_without_data_to_judge_has_the_reason_in_its_status(self, tmp_path):
        job = make_job(tmp_path / "job", "--scenario", "cpu-only", "--minutes", 1)
        status, details, _ = evaluate(tmp_path, job, rule="LowGPUUtilization")
        assert (status, details) == (
            Status.NO_ISSUES,
            "not evaluated: no GPU metrics",
        )

    def test_unknown_rule_is_an_error(self, tmp_path, job):
        status, details, output = evaluate(tmp_path, job, rule="Nope")
        assert status is Status.ERROR
        assert "Nope is not a built-in rule" in details
        assert "Nope" in (output / "profiler-report.html").read_text()

    def test_bad_parameter_is_an_error(self, tmp_path, job):
        assert evaluate(tmp_path, job, parameters={"CPUBottleneck_threshold": "200"})[:2] == (
            Status.ERROR,
            "CPUBottleneck: threshold must be a valid percentile!",
        )

    def test_broken_rule_is_reported(self, tmp_path, calm, monkeypatch):
        monkeypatch.setattr(
            runner_module.ProfilerReport, "results", results := _breaking(runner_module.ProfilerReport.results)
        )
        status, details, output = evaluate(tmp_path, calm)
        assert status is Status.NO_ISSUES
        assert "LoadBalancing could not be evaluated" in details
        assert "not evaluated: because" in (output / "profiler-report.html").read_text()
        assert results.called
        assert evaluate(tmp_path, calm, rule="LoadBalancing")[:2] == (Status.ERROR, "LoadBalancing: because")

    def test_missing_source_is_an_error(self, tmp_path):
        status, details, _ = evaluate(tmp_path, "")
        assert status is Status.ERROR
        assert "no profile to evaluate" in details

    def test_nonexistent_source_is_an_error(self, tmp_path):
        assert evaluate(tmp_path, tmp_path / "nowhere")[0] is Status.ERROR

    def test_ended_job_without_data_finds_no_issues(self, tmp_path):
        (tmp_path / "p/system").mkdir(parents=True)
        (tmp_path / "p/system" / END).touch()
        for follow in (True, False):
            status, details, _ = evaluate(tmp_path, tmp_path / "p", follow=follow)
            assert status is Status.NO_ISSUES
            assert details.startswith("not evaluated: no profiler data in ")
            assert "the job ended without any" in details

    def test_data_that_come_together_with_the_end_marker_are_evaluated(self, tmp_path, calm, monkeypatch):
        profile = tmp_path / "p"
        (profile / "system").mkdir(parents=True)
        opened = runner_module.open_source

        def open_source(location, **options):
            try:
                return opened(location, **options)
            finally:  # the last upload of the job comes a moment after this look
                if not (profile / "system" / END).exists():
                    shutil.copytree(calm, profile, dirs_exist_ok=True)
                    (profile / "system" / END).touch()

        monkeypatch.setattr(runner_module, "open_source", open_source)
        status, details, output = evaluate(tmp_path, profile, follow=True)
        assert "no profiler data" not in details
        assert (output / "profiler-reports/OverallSystemUsage.json").exists(), status

    def test_failing_report_writer_falls_back_to_a_plain_report(self, tmp_path, job):
        made = settings(tmp_path, job)
        status, _ = Runner(made, write_report=lambda _: 1 / 0).run()
        assert status is Status.ISSUES
        assert "ZeroDivisionError" in (made.output / "profiler-report.html").read_text()

    def test_status_details_are_truncated(self, tmp_path, job):
        Runner(settings(tmp_path, job, rule="N" * 3000)).run()
        assert len(json.loads((tmp_path / "out/rule-status.json").read_text())["StatusDetails"]) == 1024


def _breaking(original):
    def results(self):
        results.called = True
        found = original(self)
        rest = {name: result for name, result in found.results.items() if name != "LoadBalancing"}
        return RuleResults(rest, {"LoadBalancing": "because"})

    return results


class TestFollowing:
    def live(self, tmp_path, job):
        """Return a copy of the job with its first two minutes only, and the files still to come."""
        folder = tmp_path / "live"
        files = sorted(path for path in (job / "system").rglob("*.json"))
        later = files[2:] + list((job / "framework").rglob("*.json"))
        for path in files[:2]:
            self.bring(job, folder, path)
        return folder, later

    @staticmethod
    def bring(job, folder, path):
        target = folder / path.relative_to(job)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_suffix(".tmp")
        temporary.write_bytes(path.read_bytes())
        temporary.rename(target)

    def test_follows_until_the_end_marker(self, tmp_path, job):
        folder, later = self.live(tmp_path, job)
        drawn = []
        made = settings(tmp_path, folder, follow=True)
        runner = Runner(made, poll_s=0.02, write_report=lambda one: drawn.append((one.finished, one.results)))
        ended = []
        thread = threading.Thread(target=lambda: ended.append(runner.run()))
        thread.start()
        wait_for(lambda: len(drawn) == 1)
        assert json.loads((made.output / "rule-status.json").read_text())["RuleEvaluationStatus"] == "InProgress"
        for path in later:
            self.bring(job, folder, path)
        wait_for(lambda: len(drawn) >= 2)
        (folder / "framework").mkdir(exist_ok=True)
        (folder / "framework" / END).touch()
        thread.join(30)
        assert ended[0][0] is Status.ISSUES
        assert [finished for finished, _ in drawn][-1] is True
        whole = Runner(settings(tmp_path / "whole", job))
        whole.run()
        for path in (whole.settings.output / "profiler-reports").iterdir():
            assert (
                json.loads((made.output / "profiler-reports" / path.name).read_text())["Datapoints"]
                == json.loads(path.read_text())["Datapoints"]
            )

    def test_follows_until_the_stop_signal_has_aged(self, tmp_path, job):
        folder, _ = self.live(tmp_path, job)
        signal_file = tmp_path / "stop"
        made = settings(tmp_path, folder, follow=True, stop_file=signal_file, grace_s=60)
        runner = Runner(made, poll_s=0.02)
        ended = []
        thread = threading.Thread(target=lambda: ended.append(runner.run()))
        thread.start()
        signal_file.write_text(str(time.time()))
        time.sleep(0.3)
        assert not ended  # the grace time has not passed
        signal_file.write_text(str(time.time() - 61))
        thread.join(30)
        assert ended[0][0] is Status.NO_ISSUES

    def test_stop_before_any_data(self, tmp_path):
        folder = tmp_path / "p/system"
        folder.mkdir(parents=True)
        runner = Runner(settings(tmp_path, folder.parent, follow=True), poll_s=0.02)
        threading.Timer(0.2, runner.stop).start()
        status, details = runner.run()
        assert status is Status.STOPPED
        assert "stopped before any arrived" in details

    def test_sigterm_writes_a_report(self, tmp_path, job):
        folder, _ = self.live(tmp_path, job)
        root = tmp_path / "ml"
        environment = {
            **os.environ,
            "SM_PROFILER_ROOT": str(root),
            "SM_PROFILER_SOURCE": str(folder),
            "SM_PROFILER_POLL_S": "0.1",
        }
        process = subprocess.Popen([sys.executable, "-m", "sm_profiler", "rules", "run", "--follow"], env=environment)
        output = root / "processing/output/rule/profiler-output"
        wait_for((output / "report.json").exists)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert json.loads((output / "rule-status.json").read_text())["RuleEvaluationStatus"] == "Stopped"
        assert (output / "profiler-report.ipynb").exists()


def wait_for(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.01)


def test_the_log_has_no_lines_of_botocore(tmp_path):
    """Each client logs at INFO where it found its credentials and its endpoint."""
    code = "import logging; from sm_profiler.rules.runner import main; main([]); logging.getLogger('botocore.x').info('Found')"
    environment = {**os.environ, "SM_PROFILER_ROOT": str(tmp_path), "rule_to_invoke": "StepOutlier"}
    log = subprocess.run([sys.executable, "-c", code], env=environment, text=True, capture_output=True, check=False)
    assert "StepOutlier: Error" in log.stdout
    assert "Found" not in log.stdout


class TestSettings:
    def test_reads_the_processing_job_configuration(self, tmp_path):
        (tmp_path / "config").mkdir()
        config = {
            "Environment": {"rule_to_invoke": "StepOutlier", "stddev": "4", "scan_interval_us": "60000000"},
            "TrainingJobArn": "arn:aws:sagemaker:eu-west-1:123456789012:training-job/my-job",
            "ProcessingInputs": [
                {"S3Input": {"S3Uri": "s3://b/code", "LocalPath": "/opt/ml/processing/code"}},
                {
                    "S3Input": {
                        "S3Uri": "s3://b/p",
                        "LocalPath": "/opt/ml/processing/input/profiler",
                        "S3InputMode": "Continuous",
                    }
                },
            ],
        }
        (tmp_path / "config/processingjobconfig.json").write_text(json.dumps(config))
        found = read_settings({"SM_PROFILER_ROOT": str(tmp_path)})
        assert (found.source, found.rule, found.follow, found.job) == ("s3://b/p", "StepOutlier", True, "my-job")
        assert found.parameters == {"stddev": "4", "scan_interval_us": "60000000"}
        assert found.output == tmp_path / "processing/output/rule/profiler-output"

    def test_container_variables_are_not_parameters(self, tmp_path):
        """A processing job's variables are repeated in its configuration."""
        (tmp_path / "config").mkdir()
        environment = {
            "SM_PROFILER_SOURCE": "s3://b/p",
            "TRAINING_JOB_NAME": "my-job",
            "rule_to_invoke": "ProfilerReport",
            "rule_follow": "false",
            "StepOutlier_stddev": "4",
        }
        (tmp_path / "config/processingjobconfig.json").write_text(json.dumps({"Environment": environment}))
        for extra in ({}, environment):
            found = read_settings({"SM_PROFILER_ROOT": str(tmp_path), **extra})
            assert found.parameters == {"StepOutlier_stddev": "4"}
            assert (found.source, found.job, found.follow) == ("s3://b/p", "my-job", False)

    def test_reads_the_environment(self, tmp_path):
        environment = {
            "SM_PROFILER_ROOT": str(tmp_path),
            "SM_PROFILER_SOURCE": "s3://b/p",
            "rule_to_invoke": "ProfilerReport",
            "CPUBottleneck_threshold": "30",
            "SAGEMAKER_ENV_RULE_STOP_SIGNAL_FILE": "/opt/ml/stop",
            "rule_stop_grace_time_secs": "5",
            "HOME": "/root",
        }
        found = read_settings(environment)
        assert found.parameters == {"CPUBottleneck_threshold": "30"}
        assert (found.stop_file, found.grace_s, found.follow) == (tmp_path / "stop", 5.0, True)

    @pytest.mark.parametrize("prefix", ["", "StepOutlier_"])
    def test_the_environment_has_the_parameters_of_the_rule(self, tmp_path, prefix):
        environment = {
            "rule_to_invoke": "stepoutlier",
            f"{prefix}n_outliers": "1",
            f"{prefix}threshold": "4",
            "mode_x": "7",
        }
        found = read_settings({"SM_PROFILER_ROOT": str(tmp_path), **environment})
        assert found.parameters == {f"{prefix}n_outliers": "1", f"{prefix}threshold": "4"}

    @pytest.mark.parametrize(
        "variable", [("threshold", "abc", "CPUBottleneck"), ("threshold_p95", "101", "LowGPUUtilization")]
    )
    def test_a_bad_parameter_in_the_environment_is_an_error(self, tmp_path, monkeypatch, calm, variable):
        name, value, rule = variable
        for key, text in {
            "SM_PROFILER_ROOT": str(tmp_path),
            "SM_PROFILER_SOURCE": str(calm),
            "rule_to_invoke": rule,
        }.items():
            monkeypatch.setenv(key, text)
        monkeypatch.setenv(name, value)
        assert main() == 1
        status = json.loads((tmp_path / "processing/output/rule/profiler-output/rule-status.json").read_text())
        assert status["RuleEvaluationStatus"] == "Error"
        assert f"{rule}: {name} must be" in status["StatusDetails"]

    @pytest.mark.parametrize(
        ("rule", "variable", "meant"),
        [
            ("StepOutlier", "n_outlier", "n_outliers"),
            ("ProfilerReport", "CPUBotleneck_threshold", "CPUBottleneck_threshold"),
            ("ProfilerReport", "rule_folow", "rule_follow"),
        ],
    )
    def test_a_mistyped_parameter_in_the_environment_is_logged(self, tmp_path, caplog, rule, variable, meant):
        shell = {"HOME": "/root", "http_proxy": "x", "npm_config_cache": "y", "_": "/usr/bin/env", "LS_COLORS": ""}
        read_settings({"SM_PROFILER_ROOT": str(tmp_path), "rule_to_invoke": rule, variable: "1", **shell})
        assert caplog.messages == [f"ignoring the variable {variable}, which is not a parameter: did you mean {meant}?"]

    def test_prefers_a_mounted_folder(self, tmp_path):
        mounted = tmp_path / "processing/input/profiler"
        (mounted / "system").mkdir(parents=True)
        assert read_settings({"SM_PROFILER_ROOT": str(tmp_path)}).source == str(mounted)

    @pytest.mark.parametrize("text", ["{", "[]"])
    def test_broken_configuration_is_a_container_error(self, tmp_path, text, monkeypatch):
        (tmp_path / "config").mkdir()
        (tmp_path / "config/processingjobconfig.json").write_text(text)
        monkeypatch.setenv("SM_PROFILER_ROOT", str(tmp_path))
        assert main() == 1
        status = json.loads((tmp_path / "processing/output/rule/profiler-output/rule-status.json").read_text())
        assert status["RuleEvaluationStatus"] == "Error"

    @pytest.mark.parametrize("text", ["10s", "nan", "-1", "0", "inf", "1e99", "²"])
    def test_bad_poll_interval_is_replaced_by_the_default(self, job, tmp_path, monkeypatch, caplog, text):
        monkeypatch.setenv("SM_PROFILER_ROOT", str(tmp_path))
        monkeypatch.setenv("SM_PROFILER_SOURCE", str(job))
        monkeypatch.setenv("SM_PROFILER_POLL_S", text)
        assert main() == 0
        line = f"SM_PROFILER_POLL_S: expected a number of seconds up to 3600, found {text!r}; using the default, 10 s"
        assert f"sm-profiler: {line}" in caplog.messages
        output = tmp_path / "processing/output/rule/profiler-output"
        assert json.loads((output / "rule-status.json").read_text())["RuleEvaluationStatus"] == "IssuesFound"
        assert (output / "profiler-report.html").exists()

    def test_bad_number_is_a_container_error(self, tmp_path, monkeypatch):
        monkeypatch.setenv("SM_PROFILER_ROOT", str(tmp_path))
        monkeypatch.setenv("rule_stop_grace_time_secs", "soon")
        assert main() == 1


CUSTOM_RULES = '''
import time
from sm_profiler.rules import Rule, RuleEvaluationConditionMet

class Window(Rule):
    """The old API, window by window."""
    def __init__(self, base_trial, threshold=50, action_str="", scan_interval_us=60 * 1000 * 1000):
        super().__init__(base_trial, action_str)
        self.threshold, self.scan_interval_us = float(threshold), int(scan_interval_us)
    def invoke_for_timerange(self, start_us, end_us, system_events, framework_events):
        use = [event.value for event in system_events if event.dimension == "GPUUtilization"]
        self.report["Datapoints"] += len(use)
        return bool(use) and sum(use) / len(use) < self.threshold

class ByHand(Rule):
    """The old API, everything by hand."""
    def __init__(self, base_trial):
        super().__init__(base_trial)
        self.last_timestamp = self.base_trial.first_timestamp
    def invoke_at_step(self, step):
        pass
    def invoke(self, step):
        now = self.last_timestamp + 60_000_000
        self.base_trial.wait_for_data(now, self.last_timestamp)
        events = self.base_trial.get_framework_metrics(self.last_timestamp, now)
        self.last_timestamp = now
        print("step", step, len(events), "events")
        if any(event.event_name == "Step:ModeKeys.EVAL" for event in events):
            raise RuleEvaluationConditionMet(self.rule_name, step)

class New:
    def __init__(self, limit="0"):
        self.limit, self.count = int(limit), 0
    def update(self, window):
        self.count += len(window.new_events)
    def result(self):
        return {"RuleTriggered": int(self.count > self.limit), "count": self.count}

class Raises:
    def update(self, window):
        raise ValueError("a value")
    def result(self):
        return None

class Hangs:
    def update(self, window):
        time.sleep(1000)
    def result(self):
        return None

class Exits:
    def update(self, window):
        import os
        print("last words")
        os._exit(9)
    def result(self):
        return None

class NoRule:
    pass
'''


@pytest.mark.parametrize(
    ("window", "found", "text"),
    [
        (None, {"RuleTriggered": 1, "Violations": 7, "Datapoints": 20}, "is met: 7 of 20 observations"),
        (2, {"Violations": 7, "Datapoints": 20}, "is met, first in minute 3: 7 of 20 observations"),
        (0, None, "is met, first in minute 1"),
        (None, {"RuleTriggered": 1, "Violations": "x"}, "is met"),
        (0, {"RuleTriggered": 1, "Violations": 0, "Datapoints": 20}, "is met, first in minute 1"),
    ],
)
def test_a_rule_on_windows_states_how_often_its_condition_was_met(window, found, text):
    assert met_text("Mine", window, found) == f"The condition of the rule Mine {text}"


class TestCustomRules:
    @pytest.fixture
    def code(self, tmp_path):
        path = tmp_path / "my_rules.py"
        path.write_text(CUSTOM_RULES)
        return str(path)

    def test_old_api_window_by_window(self, tmp_path, job, code):
        status, details, output = evaluate(tmp_path, job, code=code, rule="Window", parameters={"threshold": "60"})
        assert (status, details) == (
            Status.ISSUES,
            "The condition of the rule Window is met, first in minute 1",
        )
        assert json.loads((output / "profiler-reports/Window.json").read_text())["Datapoints"] > 0
        assert evaluate(tmp_path, job, code=code, rule="Window", parameters={"threshold": "0"})[0] is Status.NO_ISSUES

    def test_old_api_with_own_loop(self, tmp_path, job, code):
        status, _, output = evaluate(tmp_path, job, code=code, rule="ByHand")
        assert status is Status.ISSUES
        assert (output / "ByHand.log").read_text().startswith("step 0 ")

    def test_rule_with_update_and_result(self, tmp_path, job, code):
        status, _, output = evaluate(tmp_path, job, code=code, rule="New")
        assert status is Status.ISSUES
        assert len(list((output / "profiler-reports").iterdir())) == len(RULES) + 1
        assert evaluate(tmp_path, job, code=code, rule="New", parameters={"limit": "10000000"})[0] is Status.NO_ISSUES

    @pytest.mark.parametrize(
        ("rule", "message"),
        [
            ("Raises", r"Raises failed: ValueError: a value (my_rules.py, line 41)"),
            ("Exits", "Exits ended with exit code 9: last words"),
            (
                "NoRule",
                "NoRule in my_rules.py is not a rule: it needs the methods update(window) and result(), or the base class Rule",
            ),
            ("Missing", "my_rules.py has no class Missing; it has: Window, ByHand, New, Raises, Hangs, Exits, NoRule"),
        ],
    )
    def test_errors_are_one_line(self, tmp_path, calm, code, rule, message):
        assert evaluate(tmp_path, calm, code=code, rule=rule)[:2] == (Status.ERROR, message)

    def test_an_error_in_a_file_with_a_relative_path_has_its_line(self, tmp_path, calm, code, monkeypatch):
        monkeypatch.chdir(tmp_path)
        found = evaluate(tmp_path, calm, code="my_rules.py", rule="Raises")
        assert found[1] == "Raises failed: ValueError: a value (my_rules.py, line 41)"
        found = evaluate(tmp_path, calm, code="my_rules.py", rule="Window", parameters={"threshold": "abc"})
        assert found[1].endswith("could not convert string to float: 'abc' (my_rules.py, line 9)")

    def test_an_own_rule_that_fails_is_listed_in_the_report(self, tmp_path, calm, code):
        made = settings(tmp_path, calm, code=code, rule="Raises")
        Runner(made, write_report=write_for_runner, make_folds=make_folds).run()
        report = json.loads((made.output / "report.json").read_text())
        assert "ValueError: a value" in report["broken_rules"]["Raises"]
        assert "Raises" in (made.output / "profiler-report.html").read_text()

    def test_unknown_parameter_is_an_error(self, tmp_path, calm, code):
        status, details, _ = evaluate(tmp_path, calm, code=code, rule="New", parameters={"limits": "3"})
        assert (status, details) == (Status.ERROR, "New has no parameter 'limits'; it has: limit")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (
                "x = 1\nimport no_such_module\n",
                "cannot import rule.py: ModuleNotFoundError: No module named 'no_such_module' (line 2)",
            ),
            ("def f(:\n", "cannot import rule.py: invalid syntax (line 1)"),
            ("import sys\nsys.exit('enough')\n", "cannot import rule.py: SystemExit: enough (line 2)"),
        ],
    )
    def test_broken_file_is_an_error(self, tmp_path, calm, text, message):
        path = tmp_path / "rule.py"
        path.write_text(text)
        assert evaluate(tmp_path, calm, code=str(path), rule="Any")[:2] == (Status.ERROR, message)

    def test_file_may_have_the_name_of_a_module(self, tmp_path, job):
        path = tmp_path / "json.py"
        path.write_text(CUSTOM_RULES)
        assert evaluate(tmp_path, job, code=str(path), rule="New")[0] is Status.ISSUES

    def test_rule_name_is_a_class_name(self, tmp_path, calm, code):
        status, details, _ = evaluate(tmp_path, calm, code=code, rule="../../Any")
        assert (status, details) == (Status.ERROR, "rule_to_invoke must be the name of a class, not '../../Any'")

    def test_missing_file_is_an_error(self, tmp_path, calm):
        assert "does not exist" in evaluate(tmp_path, calm, code="/nowhere/rule.py", rule="Any")[1]

    def test_rule_that_does_not_end_is_killed(self, tmp_path, calm, code):
        status, details, output = evaluate(tmp_path, calm, code=code, rule="Hangs", timeout_s=1.0)
        assert status is Status.ERROR
        assert details == "Hangs did not end within 1 s after the job's data"
        assert (output / "profiler-reports/LoadBalancing.json").exists()


def test_command_line_writes_the_whole_report(tmp_path, job):
    """Run the entry point of the image."""
    environment = {
        **os.environ,
        "SM_PROFILER_ROOT": str(tmp_path),
        "SM_PROFILER_SOURCE": str(job),
        "rule_to_invoke": "ProfilerReport",
    }
    done = subprocess.run(
        [sys.executable, "-m", "sm_profiler", "rules", "run", "--compat", "service"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    output = tmp_path / "processing/output/rule/profiler-output"
    assert {"profiler-report.html", "profiler-report.ipynb", "report.json", "rule-status.json"} <= {
        path.name for path in output.iterdir()
    }
    assert "threshold:0.2" in (output / "profiler-reports/LoadBalancing.json").read_text()
    assert Path(output, "profiler-report.html").stat().st_size > 50_000
