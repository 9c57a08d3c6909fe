"""The demo: run a user's two scripts on the local endpoint and show their progress and report."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import sm_profiler
from sm_profiler.errors import ProfilerError
from sm_profiler.formats.layout import END_MARKERS
from sm_profiler.formatting import plural
from sm_profiler.local.records import FINAL_RULE_STATUSES
from sm_profiler.local.services import download, s3_keys
from sm_profiler.local.supervisor import JobProcess, describe_exit
from sm_profiler.render.words import factors
from sm_profiler.report.report_json import ReportJson
from sm_profiler.settings import LOCAL_PYTHON

if TYPE_CHECKING:
    from sm_profiler.local.endpoint import EndpointBase

PROFILE = "profiler-output"
NEEDED = {"moto": "sm-profiler[local,sagemaker2]", "sagemaker": "sm-profiler[local,sagemaker2]"}
FRAMEWORKS = {
    "pytorch": {"torch": "torch", "PIL": "pillow"},
    "keras": {"tensorflow": "tensorflow", "keras": "keras", "PIL": "pillow"},
}
LAUNCHES = {"pytorch": "launch.py", "keras": "launch_keras.py"}
SETTINGS_LOG = "sagemaker.config INFO"  # the SDK's search for settings files
QUIET_S = 5.0  # seconds without output of the SDK before a progress line
MAX_RULE_WAIT_S = 600.0


def launch_script(framework: str = "pytorch") -> Path:
    """Return the demo's launch script, in the repository or the installed package."""
    package = Path(sm_profiler.__file__).parent
    for folder in (package / "local" / "demo", package.parent / "examples" / "demo"):
        if (folder / LAUNCHES[framework]).is_file():
            return folder / LAUNCHES[framework]
    raise ProfilerError("this installation has no demo scripts; they are in examples/demo of the sources")


def check_packages(framework: str = "pytorch") -> None:
    """Check that the demo's packages are installed; the jobs may use another interpreter."""
    needed = NEEDED if LOCAL_PYTHON.read() else NEEDED | FRAMEWORKS[framework]
    for module, requirement in needed.items():
        if find_spec(module) is None:
            raise ProfilerError(f"the demo needs {module}: pip install '{requirement}'")
    if not version("sagemaker").startswith("2."):
        raise ProfilerError("the demo needs version 2 of the SageMaker SDK: pip install 'sm-profiler[sagemaker2]'")


class Demo:
    """A run of the demo.

    Args:
        local: the running endpoint.
        out: folder for a copy of the report.
        show: receives each line for the user.
        launch: the launch script; default: PyTorch's.
    """

    def __init__(self, local: EndpointBase, out: Path, show: Callable[[str], None], launch: Path | None = None) -> None:
        self.local, self.out, self.show = local, out, show
        self.launch = launch or launch_script()
        self._last_output = time.monotonic()
        self._sagemaker = local.client("sagemaker")
        self._s3 = local.client("s3")

    def run(self) -> ReportJson:
        self.show(f"[1/4] endpoint: SageMaker and S3 at {self.local.url}, on this machine only")
        self.show(f"[2/4] launch: python {_short(self.launch)} (the unchanged SageMaker SDK v2; trains for about 40 s)")
        self._launch()
        job = self._job()
        if job["TrainingJobStatus"] != "Completed":
            raise ProfilerError(f"the training ended as {job['TrainingJobStatus']}: {job.get('FailureReason', '')}")
        self.show("[3/4] rules: fit() has returned; waiting for the rule job")
        self._wait_for_rules()
        self.show("[4/4] report: copied from S3")
        return self._fetch_report()

    def _launch(self) -> None:
        # the user's AWS settings (profile, session, endpoints of single services) must not affect the demo
        own = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "SAGEMAKER_"))}
        environment = {**own, **self.local.environment, "SAGEMAKER_ROLE": self.local.role}
        environment |= {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
        environment |= {"PYTHONUNBUFFERED": "1", "SAGEMAKER_SUPPRESS_V2_WARNING": "1"}
        script = JobProcess([sys.executable, str(self.launch)], environment, self.launch.parent, self._relay, 3.0)
        try:
            while (code := script.wait(0.5)) is None:
                if time.monotonic() - self._last_output > QUIET_S:
                    self._show_progress()
        finally:
            script.stop()
            script.wait()
        if code:
            raise ProfilerError(f"the launch script ended with {describe_exit(code)}; see its output above")

    def _relay(self, line: str) -> None:
        if line.strip() and not line.startswith(SETTINGS_LOG):
            self._last_output = time.monotonic()
            self.show(f"      {line}")

    def _show_progress(self) -> None:
        self._last_output = time.monotonic()
        names = self._sagemaker.list_training_jobs()["TrainingJobSummaries"]
        if not names:
            self.show("      … the SDK is starting and packing the source code")
            return
        job = self._job()
        uri = job["ProfilerConfig"]["S3OutputPath"].rstrip("/") + f"/{job['TrainingJobName']}/profiler-output"
        files = sum(not key.endswith(END_MARKERS) for key in s3_keys(self._s3, uri))  # as the report counts
        rules = ", ".join(
            f"{rule['RuleConfigurationName']}: {rule['RuleEvaluationStatus']}"
            for rule in job.get("ProfilerRuleEvaluationStatuses", ())
        )
        state = job["SecondaryStatus"]
        if state == "Completed":
            state = "training is done; the SDK polls every 30 s"
        self.show(f"      … {state}; {plural(files, 'profile file')} on S3; rule job {rules or 'not started'}")

    def _job(self) -> dict[str, Any]:
        summaries = self._sagemaker.list_training_jobs()["TrainingJobSummaries"]
        if not summaries:
            raise ProfilerError("the launch script started no training job")
        found: dict[str, Any] = self._sagemaker.describe_training_job(TrainingJobName=summaries[-1]["TrainingJobName"])
        return found

    def _wait_for_rules(self) -> None:
        end = time.monotonic() + MAX_RULE_WAIT_S
        shown = 0.0
        while time.monotonic() < end:
            rules = self._job().get("ProfilerRuleEvaluationStatuses", [])
            if all(rule["RuleEvaluationStatus"] in FINAL_RULE_STATUSES for rule in rules):
                for rule in rules:
                    status = f"{rule['RuleConfigurationName']}: {rule['RuleEvaluationStatus']}"
                    self.show(f"      {status} {rule.get('StatusDetails', '')}".rstrip())
                return
            if time.monotonic() - shown > QUIET_S:
                shown = time.monotonic()
                self._show_progress()
            time.sleep(0.5)
        raise ProfilerError(f"the rule job did not end within {MAX_RULE_WAIT_S:.0f} s")

    @property
    def report_uri(self) -> str:
        """s3:// URI of the report's folder."""
        job = self._job()
        base = job["ProfilerConfig"]["S3OutputPath"].rstrip("/")
        rule = job["ProfilerRuleConfigurations"][0]["RuleConfigurationName"]
        return f"{base}/{job['TrainingJobName']}/rule-output/{rule}/profiler-output"

    def _fetch_report(self) -> ReportJson:
        self.out.mkdir(parents=True, exist_ok=True)
        for name in (PROFILE, "profiler-reports"):  # left by an earlier demo; other files are overwritten
            shutil.rmtree(self.out / name, ignore_errors=True)
        download(self._s3, self.report_uri + "/", self.out)
        download(self._s3, self.report_uri.partition("/rule-output/")[0] + f"/{PROFILE}/", self.out / PROFILE)
        try:
            return msgspec.json.decode((self.out / "report.json").read_bytes(), type=ReportJson)
        except (OSError, msgspec.MsgspecError) as error:
            raise ProfilerError(f"the rule job left no report.json under {self.report_uri}") from error

    def summary(self, report: ReportJson) -> list[str]:
        """Return the closing lines: the job, the verdict with its line of code and gain, the cost of profiling, the report's location."""
        job, verdict = self._job(), report.verdict
        metrics = {entry["MetricName"]: entry["Value"] for entry in job.get("FinalMetricDataList", ())}
        loss = f", last loss {metrics['loss']:.3f}" if "loss" in metrics else ""
        lines = [
            f"job      {job['TrainingJobName']}: {job['TrainingTimeInSeconds']} s of training{loss}",
            f"verdict  {verdict.kind.value}: {verdict.headline}",
        ]
        for place in verdict.where[:1]:
            source = f": {place.source}" if place.source else ""
            lines.append(f"where    {place.file}:{place.line} in {place.function}{source}")
        if verdict.gain:
            lines.append(f"gain     after the repair, the loop runs {factors(verdict.gain.speedup)} times as fast")
        if verdict.next_step:
            lines.append(f"next     {verdict.next_step}")
        command = Path(sys.executable).with_name("sm-profiler")
        fired = [name for name, rule in report.rules.items() if rule["RuleTriggered"]]
        return [
            *lines,
            f"rules    {len(report.rules)} evaluated, fired: {', '.join(fired) or 'none'}",
            f"cost     profiling: {report.profiling_cost}",
            f"report   {self.report_uri}/profiler-report.html",
            f"         copied to {_short(self.out / 'profiler-report.html')}, profile to {_short(self.out / PROFILE)}",
            f"live     in the browser, also while a job runs: {_short(command)} serve {_short(self.out)}",
        ]


def _short(path: Path) -> str:
    try:
        return f"./{path.absolute().relative_to(Path.cwd())}"
    except ValueError:
        return str(path)
