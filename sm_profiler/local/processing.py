"""Run processing jobs: rules as the rule container would run them, and scripts with an entry point of their own."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

from sm_profiler.container import (
    JOB_NAME_VARIABLE,
    POLL_VARIABLE,
    PROCESSING_CONFIG,
    PROCESSING_RESOURCE_CONFIG,
    ROOT_VARIABLE,
    RULE_INPUT,
    RULE_OUTPUT,
    STOP_SIGNAL_VARIABLE,
    relocated,
    relocated_text,
)
from sm_profiler.errors import ProfilerError
from sm_profiler.local.logs import PROCESSING_GROUP, LogStream
from sm_profiler.local.overlay import create_overlay
from sm_profiler.local.process import JobProcess, describe_exit
from sm_profiler.local.records import (
    FINAL_RULE_STATUSES,
    MAX_REASON,
    JsonDict,
    ProcessingJobRecord,
    RuleRecord,
    TrainingJobRecord,
    now,
)
from sm_profiler.local.services import Services
from sm_profiler.local.transfer import download, open_uploader
from sm_profiler.monitor.uploader import Uploader
from sm_profiler.rules.settings import STATUS_FILE

POLL_S = 0.5
RULE_GRACE_S = 5.0
RULE_POLL_S = 1.0
RULE_IMAGE = re.compile(r"(sagemaker-debugger-rules|sm-profiler)")
RULE_COMMAND = [sys.executable, "-m", "sm_profiler", "rules", "run"]
DEFAULT_MAX_RUNTIME_S = 86400
MAX_AFTER_TRAINING_S = 900.0  # a rule still running then is stopped and ends as Error, so that no client waits forever


class ProcessingRun(threading.Thread):
    """Life of one processing job."""

    def __init__(self, services: Services, job: ProcessingJobRecord) -> None:
        super().__init__(name=f"processing {job.name}", daemon=True)
        self.services, self.job = services, job
        self.root = job.folder / "ml"
        self.process: JobProcess | None = None
        self._uploaders: list[Uploader] = []

    def close(self) -> None:
        """Stop the job because the endpoint ends."""
        self.job.stop_requested.set()
        if self.process is not None:
            self.process.stop()

    def run(self) -> None:
        """Run the job to a final status."""
        status, reason = "Completed", ""
        try:
            status, reason = self._process()
        except ProfilerError as error:
            status, reason = "Failed", f"ClientError: {error}"
        except Exception as error:  # noqa: BLE001 - clients wait for a final status
            status, reason = "Failed", f"InternalServerError: the local endpoint failed: {error!r}"
        with self.job.lock:
            self.job.failure = reason[:MAX_REASON]
            self.job.end_time = self.job.last_modified_time = now()
            self.job.status = status
        self.services.log_event(f"processing job {self.job.name}: {status} {self.job.failure}".rstrip())

    def _process(self) -> tuple[str, str]:
        job = self.job
        s3 = self.services.client("s3", job.region)
        job.start_time = now()
        log = _log_stream(self.services, job.region, job.name)
        try:
            self._prepare(s3, log)
            command = self._command()
            limit = job.request.get("StoppingCondition", {}).get("MaxRuntimeInSeconds", DEFAULT_MAX_RUNTIME_S)
            self.process = JobProcess(command, self._environment(), self.root, log.write)
            end = time.monotonic() + limit
            while (code := self.process.wait(POLL_S)) is None:
                self._upload()
                if job.stop_requested.is_set() or time.monotonic() > end:
                    self.process.stop()
            self._upload()
        finally:
            log.close()
        job.exit_message = read_status(self.root).get("StatusDetails", "")[:MAX_REASON]
        if job.stop_requested.is_set():
            return "Stopped", ""
        if self.process.stopped:
            return "Stopped", "MaxRuntimeExceeded"
        if code:
            return "Failed", f"AlgorithmError: {describe_exit(code)}: {' '.join(log.tail[-3:])}"
        return "Completed", ""

    def _prepare(self, s3: Any, log: LogStream) -> None:
        (self.job.folder / "home").mkdir()
        _write_json(self.root, PROCESSING_CONFIG, {**self.job.request, "ProcessingJobArn": self.job.arn})
        _write_json(self.root, PROCESSING_RESOURCE_CONFIG, {"current_host": "algo-1", "hosts": ["algo-1"]})
        for entry in self.job.request.get("ProcessingInputs", ()):
            source = entry.get("S3Input")
            if source is None or not source.get("LocalPath"):
                raise ProfilerError(
                    f"input {entry['InputName']}: the local endpoint supports only S3 inputs with a LocalPath"
                )
            folder = self._folder(source["LocalPath"])
            if not self.is_rule:  # the rule runner reads S3 itself, to follow a running job
                download(s3, source["S3Uri"], folder)
        for entry in self.job.request.get("ProcessingOutputConfig", {}).get("Outputs", ()):
            target = entry.get("S3Output")
            if target is not None:
                folder = self._folder(target["LocalPath"])
                folder.mkdir(parents=True, exist_ok=True)
                self._uploaders.append(open_uploader(s3, folder, target["S3Uri"].rstrip("/"), log.write))

    def _folder(self, local_path: str) -> Path:
        """Return the counterpart of a LocalPath, which must be below /opt/ml."""
        folder = Path(relocated_text(local_path, self.root))
        if not folder.resolve().is_relative_to(self.root.resolve()):
            raise ProfilerError(f"LocalPath {local_path!r} is not below /opt/ml")
        return folder

    @property
    def is_rule(self) -> bool:
        """True for a rule image or an environment that names a rule, without an entry point of its own."""
        application = self.job.request["AppSpecification"]
        named = "rule_to_invoke" in self.job.request.get("Environment", {})
        return (named or bool(RULE_IMAGE.search(application["ImageUri"]))) and not application.get(
            "ContainerEntrypoint"
        )

    def _command(self) -> list[str]:
        if self.is_rule:
            return RULE_COMMAND
        application = self.job.request["AppSpecification"]
        if not application.get("ContainerEntrypoint"):
            raise ProfilerError(
                f"nothing to run: the local endpoint cannot start the image {application['ImageUri']!r};"
                " it runs rule images and jobs with a ContainerEntrypoint"
            )
        words = [*application["ContainerEntrypoint"], *application.get("ContainerArguments", ())]
        return [relocated_text(word, self.root) for word in words]

    def _environment(self) -> dict[str, str]:
        python = Path(sys.executable) if self.is_rule else create_overlay(self.job.folder / "env")
        requested = self.job.request.get("Environment", {})
        return {
            **_base_environment(self.services, self.job.region, self.job.folder, python),
            ROOT_VARIABLE: str(self.root),
            "PROCESSING_JOB_NAME": self.job.name,
            "PROCESSING_JOB_ARN": self.job.arn,
            **{name: relocated_text(value, self.root) for name, value in requested.items()},
        }

    def _upload(self) -> None:
        for uploader in self._uploaders:
            with contextlib.suppress(Exception):  # retried in the next round
                uploader.upload_new()


class RuleRun(threading.Thread):
    """Life of one rule of a training job, in the folders and with the variables of the rule container."""

    def __init__(self, services: Services, job: TrainingJobRecord, rule: RuleRecord) -> None:
        super().__init__(name=f"rule {rule.name}", daemon=True)
        self.services, self.job, self.rule = services, job, rule
        self.folder = job.folder / "rules" / rule.folder_name
        self.root = self.folder / "ml"
        self.stop_file = self.root / "stop-signal"
        self.process: JobProcess | None = None
        self._deadline = float("inf")
        self._closing = threading.Event()

    @property
    def output_uri(self) -> str:
        """s3:// URI of the rule's output, without a trailing slash."""
        own = self.rule.configuration.get("S3OutputPath")
        base = f"{own.rstrip('/')}/{self.job.name}" if own else self.job.profiler_uri
        return f"{base}/rule-output/{self.rule.name}"

    def training_ended(self) -> None:
        """Signal the runner that the training is over."""
        self._deadline = time.monotonic() + MAX_AFTER_TRAINING_S
        with contextlib.suppress(OSError):
            self.stop_file.write_text(str(int(time.time())), "utf-8")

    def close(self) -> None:
        """Stop the rule because the endpoint ends."""
        self._closing.set()
        if self.process is not None:
            self.process.stop()

    def run(self) -> None:
        """Run the rule to a final status."""
        try:
            self._evaluate()
        except Exception as error:  # noqa: BLE001 - clients wait for a final status
            self.rule.set("Error", f"InternalServerError: {error!r}")
        if self.rule.status not in FINAL_RULE_STATUSES:
            self.rule.set("Error", "InternalServerError: the rule ended without a status")
        self.services.log_event(
            f"rule {self.rule.name} of {self.job.name}: {self.rule.status} {self.rule.details}".rstrip()
        )

    def _evaluate(self) -> None:
        output = relocated(RULE_OUTPUT, self.root)
        for folder in (output, self.folder / "home"):
            folder.mkdir(parents=True, exist_ok=True)
        _write_json(self.root, PROCESSING_CONFIG, self.container_config())
        log = _log_stream(self.services, self.job.region, self.rule.processing_job_name)
        uploader = open_uploader(self.services.client("s3", self.job.region), output, self.output_uri, log.write)
        self.process = JobProcess(RULE_COMMAND, self.environment(), self.folder, log.write, RULE_GRACE_S)
        while (code := self.process.wait(RULE_POLL_S)) is None:
            uploader.upload_new()
            if time.monotonic() > self._deadline or self._closing.is_set():
                self.process.stop()
        uploader.upload_new()
        log.close()
        self.rule.set(*self._final_status(code, log.tail))

    def _final_status(self, code: int, tail: list[str]) -> tuple[str, str]:
        if self._closing.is_set():
            return "Stopped", "the local endpoint was stopped"
        if self.process is not None and self.process.stopped and time.monotonic() > self._deadline:
            return "Error", f"stopped: still running {MAX_AFTER_TRAINING_S:.0f} s after the training"
        found = read_status(self.root)
        status = found.get("RuleEvaluationStatus", "")
        if status in FINAL_RULE_STATUSES and (code == 0 or status != "NoIssuesFound"):
            return status, found.get("StatusDetails", "")
        last = tail[-1] if tail else ""
        return "Error", f"InternalServerError: the rule's process ended with {describe_exit(code)}: {last}"

    def parameters(self) -> dict[str, str]:
        """Return the rule's parameters, including those that address the container."""
        return {name: str(value) for name, value in self.rule.configuration.get("RuleParameters", {}).items()}

    def environment(self) -> dict[str, str]:
        """Return all variables of the rule's process."""
        return {
            **_base_environment(self.services, self.job.region, self.folder, Path(sys.executable)),
            **self.parameters(),
            ROOT_VARIABLE: str(self.root),
            POLL_VARIABLE: "2",  # listing S3 on this machine costs little
            STOP_SIGNAL_VARIABLE: str(self.stop_file),
            JOB_NAME_VARIABLE: self.job.name,
            "TRAINING_JOB_ARN": self.job.arn,
        }

    def container_config(self) -> JsonDict:
        """Return the content of processingjobconfig.json."""
        data = f"{self.job.profiler_uri}/profiler-output"
        source = {"S3Uri": data, "LocalPath": RULE_INPUT, "S3DataType": "S3Prefix", "S3InputMode": "Continuous"}
        target = {"S3Uri": self.output_uri, "LocalPath": RULE_OUTPUT}
        return {
            "ProcessingJobName": self.rule.processing_job_name,
            "ProcessingJobArn": self.rule.arn,
            "TrainingJobArn": self.job.arn,
            "AppSpecification": {"ImageUri": self.rule.configuration["RuleEvaluatorImage"]},
            "Environment": self.parameters(),
            "ProcessingInputs": [{"InputName": "profiler", "S3Input": source}],
            "ProcessingOutputConfig": {"Outputs": [{"OutputName": "rule", "S3Output": target}]},
        }


def read_status(folder: Path) -> dict[str, str]:
    """Return the status that the rule runner wrote last; empty if there is none that can be read."""
    for path in sorted(folder.rglob(STATUS_FILE)):
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(path.read_text("utf-8"))
            if isinstance(found, dict):
                return {str(name): str(value or "") for name, value in found.items()}
    return {}


def _base_environment(services: Services, region: str, folder: Path, python: Path) -> dict[str, str]:
    return {
        "LANG": "C.UTF-8",
        "PATH": f"{python.parent}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(folder / "home"),
        "TMPDIR": str(services.temporary_folder()),
        "PYTHONUNBUFFERED": "1",
        **services.environment(region),
    }


def _log_stream(services: Services, region: str, job: str) -> LogStream:
    return LogStream(services.client("logs", region), PROCESSING_GROUP, f"{job}/algo-1-{int(time.time())}")


def _write_json(root: Path, path: str, content: Any) -> None:
    target = relocated(path, root)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(content), "utf-8")
