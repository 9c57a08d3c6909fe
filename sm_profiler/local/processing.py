"""Run processing jobs: rules as the rule container would run them, and scripts with their own entry point."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any

import attrs

from sm_profiler.container import (
    EXIT_MESSAGE,
    JOB_NAME_VARIABLE,
    PROCESSING_CONFIG,
    PROCESSING_RESOURCE_CONFIG,
    RULE_INPUT,
    RULE_OUTPUT,
    STOP_SIGNAL_VARIABLE,
    relocated,
    relocated_text,
)
from sm_profiler.errors import ProfilerError
from sm_profiler.local.command import create_overlay
from sm_profiler.local.host import free_port, host_names
from sm_profiler.local.output import PROCESSING_GROUP, LogStream
from sm_profiler.local.records import (
    FINAL_RULE_STATUSES,
    MAX_REASON,
    JsonDict,
    ProcessingJobRecord,
    RuleRecord,
    TrainingJobRecord,
    now,
)
from sm_profiler.local.services import Services, download, open_uploader
from sm_profiler.local.supervisor import GRACE_S, JobProcess, describe_exit
from sm_profiler.monitor.uploader import Uploader
from sm_profiler.rules.rule_job import GRACE, STATUS_FILE
from sm_profiler.settings import POLL_S as RULE_POLL
from sm_profiler.settings import ROOT, SCHEDULER

POLL_S = 0.5
RULE_GRACE_S = 5.0
TRAINING_GRACE_S = 5.0  # for which a rule waits for data after the training: all uploads have ended by then
LAST_UPLOAD_S = 30.0  # for which uploads of a rule's last files are tried again
RULE_IMAGE = re.compile(r"(sagemaker-debugger-rules|sm-profiler)")
RULE_COMMAND = [sys.executable, "-m", "sm_profiler", "rules", "run"]
DEFAULT_MAX_RUNTIME_S = 86400
MAX_AFTER_TRAINING_S = 900.0  # a rule still running then is stopped and ends as Error, so that no client waits forever


@attrs.define(eq=False)
class ProcessingHost:
    """One machine of a processing job: a process, and a folder in place of /opt/ml."""

    name: str
    root: Path
    log: LogStream
    uploaders: list[Uploader] = attrs.field(factory=list)
    process: JobProcess | None = None
    code: int | None = None

    def folder(self, local_path: str) -> Path:
        """Return the counterpart of a LocalPath, which must be in /opt/ml."""
        folder = Path(relocated_text(local_path, self.root))
        if not folder.resolve().is_relative_to(self.root.resolve()):
            raise ProfilerError(f"LocalPath {local_path!r} is not in /opt/ml")
        return folder

    def upload(self) -> None:
        """Upload what is new in the output folders."""
        for uploader in self.uploaders:
            with contextlib.suppress(Exception):  # retried in the next round
                uploader.upload_new()

    def write_json(self, path: str, content: Any) -> None:
        target = relocated(path, self.root)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(content), "utf-8")

    @property
    def stopped(self) -> bool:
        """True once the end of the process was requested."""
        return self.process is not None and self.process.stopped

    def stop(self) -> None:
        """Request the end of the process."""
        if self.process is not None:
            self.process.stop()

    @property
    def message(self) -> str:
        """Text that the container left for DescribeProcessingJob."""
        try:
            return relocated(EXIT_MESSAGE, self.root).read_text("utf-8").strip()
        except (OSError, ValueError):
            return read_status(self.root).get("StatusDetails", "")


class ProcessingRun(threading.Thread):
    """Life of a processing job."""

    grace_s = GRACE_S

    def __init__(self, services: Services, job: ProcessingJobRecord) -> None:
        super().__init__(name=f"processing {job.name}", daemon=True)
        self.services, self.job = services, job
        self.hosts: list[ProcessingHost] = []
        self.deadline = float("inf")  # by the monotonic clock

    def close(self) -> None:
        """Stop the job because the endpoint ends."""
        self.job.stop_requested.set()
        for host in self.hosts:
            host.stop()

    def run(self) -> None:
        """Run the job to a final status."""
        try:
            status, reason = self._process()
        except ProfilerError as error:
            status, reason = "Failed", f"ClientError: {error}"
        except Exception as error:  # clients wait for a final status
            status, reason = "Failed", f"InternalServerError: the local endpoint failed: {error!r}"
        self._end(status, reason)

    def _end(self, status: str, reason: str) -> None:
        with self.job.lock:
            self.job.failure = reason[:MAX_REASON]
            self.job.end_time = self.job.last_modified_time = now()
            self.job.status = status
        self.services.log_event(f"processing job {self.job.name}: {status} {self.job.failure}".rstrip())

    def _process(self) -> tuple[str, str]:
        job = self.job
        s3 = self.services.client("s3", job.region)
        job.start_time = now()
        try:
            self._make_hosts()
            for host in self.hosts:
                self._prepare(host, s3)
            command = [self._command(host) for host in self.hosts]
            python = Path(sys.executable) if self.is_rule else create_overlay(job.folder / "env")
            scheduler = f"127.0.0.1:{free_port()}" if len(self.hosts) > 1 else ""
            for host, words in zip(self.hosts, command, strict=True):
                environment = self.environment(host, python, scheduler)
                host.process = JobProcess(words, environment, host.root, host.log.write, self.grace_s)
            failed = self._wait()
        finally:
            for host in self.hosts:
                host.log.close()
        job.exit_message = " ".join(filter(None, (host.message for host in self.hosts)))[:MAX_REASON]
        if job.stop_requested.is_set():
            return "Stopped", ""
        if failed is not None:
            where = f"{failed.name}: " if len(self.hosts) > 1 else ""
            reason = f"{where}{describe_exit(failed.code or 0)}: {' '.join(failed.log.tail[-3:])}"
            return "Failed", f"AlgorithmError: {reason}"
        if any(host.stopped for host in self.hosts):
            return "Stopped", "MaxRuntimeExceeded"
        return "Completed", ""

    def _limit_s(self) -> float:
        limit: float = self.job.request.get("StoppingCondition", {}).get("MaxRuntimeInSeconds", DEFAULT_MAX_RUNTIME_S)
        return limit

    def _wait(self) -> ProcessingHost | None:
        """Wait until all hosts have ended; return the first that failed, which ends the others as in the service."""
        self.deadline = min(self.deadline, time.monotonic() + self._limit_s())
        failed: ProcessingHost | None = None
        running = list(self.hosts)
        while running:
            over = self.job.stop_requested.is_set() or time.monotonic() > self.deadline or failed is not None
            for host in list(running):
                if over:
                    host.stop()
                host.code = host.process.wait(POLL_S / len(running)) if host.process is not None else 0
                host.upload()
                if host.code is None:
                    continue
                running.remove(host)
                if host.code and not host.stopped and failed is None:
                    failed = host
        return failed

    def _make_hosts(self) -> None:
        count = self.job.request.get("ProcessingResources", {}).get("ClusterConfig", {}).get("InstanceCount", 1)
        client = self.services.client("logs", self.job.region)
        for name in host_names(count):
            log = LogStream(client, PROCESSING_GROUP, f"{self.job.name}/{name}-{int(time.time())}")
            folder = self.job.folder if count == 1 else self.job.folder / name
            self.hosts.append(ProcessingHost(name, folder / "ml", log))

    def _prepare(self, host: ProcessingHost, s3: Any) -> None:
        (host.root.parent / "home").mkdir(parents=True)
        host.write_json(PROCESSING_CONFIG, {**self.job.request, "ProcessingJobArn": self.job.arn})
        names = [each.name for each in self.hosts]
        resources = {"current_host": host.name, "hosts": names, "network_interface_name": "lo"}
        host.write_json(PROCESSING_RESOURCE_CONFIG, resources)
        for entry in self.job.request.get("ProcessingInputs", ()):
            source = entry.get("S3Input")
            if source is None or not source.get("LocalPath"):
                raise ProfilerError(
                    f"input {entry['InputName']}: the local endpoint supports only S3 inputs with a LocalPath"
                )
            folder = host.folder(source["LocalPath"])
            if not self.is_rule:  # the rule runner reads S3 itself, to follow a running job
                download(s3, source["S3Uri"], folder)
        for entry in self.job.request.get("ProcessingOutputConfig", {}).get("Outputs", ()):
            target = entry.get("S3Output")
            if target is not None:
                folder = host.folder(target["LocalPath"])
                folder.mkdir(parents=True, exist_ok=True)
                host.uploaders.append(open_uploader(s3, folder, target["S3Uri"].rstrip("/"), host.log.write))

    @property
    def is_rule(self) -> bool:
        """True for a rule image or an environment that names a rule, without an entry point."""
        application = self.job.request["AppSpecification"]
        named = "rule_to_invoke" in self.job.request.get("Environment", {})
        return (named or bool(RULE_IMAGE.search(application["ImageUri"]))) and not application.get(
            "ContainerEntrypoint"
        )

    def _command(self, host: ProcessingHost) -> list[str]:
        if self.is_rule:
            return RULE_COMMAND
        application = self.job.request["AppSpecification"]
        if not application.get("ContainerEntrypoint"):
            raise ProfilerError(
                f"nothing to run: the local endpoint cannot start the image {application['ImageUri']!r};"
                " it runs rule images and jobs with a ContainerEntrypoint"
            )
        words = [*application["ContainerEntrypoint"], *application.get("ContainerArguments", ())]
        return [relocated_text(word, host.root) for word in words]

    def environment(self, host: ProcessingHost, python: Path, scheduler: str = "") -> dict[str, str]:
        """Return all variables of a host's process."""
        requested = self.job.request.get("Environment", {})
        return {
            "LANG": "C.UTF-8",
            "PATH": f"{python.parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(host.root.parent / "home"),
            "TMPDIR": str(self.services.temporary_folder()),
            "PYTHONUNBUFFERED": "1",
            **self.services.environment(self.job.region),
            ROOT.name: str(host.root),
            "PROCESSING_JOB_NAME": self.job.name,
            "PROCESSING_JOB_ARN": self.job.arn,
            **({SCHEDULER.name: scheduler} if scheduler else {}),
            **{name: relocated_text(value, host.root) for name, value in requested.items()},
        }


class RuleRun(ProcessingRun):
    """Life of one rule of a training job, which the service runs as a processing job."""

    grace_s = RULE_GRACE_S
    is_rule = True

    def __init__(self, services: Services, training: TrainingJobRecord, rule: RuleRecord) -> None:
        folder = training.folder / "rules" / rule.folder_name
        super().__init__(services, ProcessingJobRecord(rule_request(training, rule), rule.arn, training.region, folder))
        self.training, self.rule = training, rule
        self.stop_file = folder / "ml" / "stop-signal"

    def training_ended(self) -> None:
        """Signal the runner that the training is over."""
        self.deadline = time.monotonic() + MAX_AFTER_TRAINING_S
        with contextlib.suppress(OSError):
            self.stop_file.write_text(str(int(time.time())), "utf-8")

    def _limit_s(self) -> float:
        return float("inf")  # until some time after the training

    def _wait(self) -> ProcessingHost | None:
        failed = super()._wait()
        for uploader in self.hosts[0].uploaders:
            uploader.drain(uploader.clock() + LAST_UPLOAD_S)
        return failed

    def environment(self, host: ProcessingHost, python: Path, scheduler: str = "") -> dict[str, str]:
        """Return all variables of the rule's process."""
        return {
            GRACE: f"{TRAINING_GRACE_S:.0f}",  # the request's own replaces it
            **super().environment(host, python, scheduler),
            RULE_POLL.name: "2",  # listing S3 on this machine costs little
            STOP_SIGNAL_VARIABLE: str(self.stop_file),
            JOB_NAME_VARIABLE: self.training.name,
            "TRAINING_JOB_ARN": self.training.arn,
        }

    def _end(self, status: str, reason: str) -> None:
        self.rule.set(*self._final_status(reason))
        text = f"rule {self.rule.name} of {self.training.name}: {self.rule.status} {self.rule.details}"
        self.services.log_event(text.rstrip())

    def _final_status(self, reason: str) -> tuple[str, str]:
        host = self.hosts[0] if self.hosts else None
        if self.job.stop_requested.is_set():
            return "Stopped", "the local endpoint was stopped"
        if host is None or host.code is None:
            return "Error", reason
        if host.stopped:
            return "Error", f"stopped: still running {MAX_AFTER_TRAINING_S:.0f} s after the training"
        found = read_status(host.root)
        status = found.get("RuleEvaluationStatus", "")
        if status in FINAL_RULE_STATUSES and (host.code == 0 or status != "NoIssuesFound"):
            return status, found.get("StatusDetails", "")
        last = host.log.tail[-1] if host.log.tail else ""
        return "Error", f"InternalServerError: the rule's process ended with {describe_exit(host.code)}: {last}"


def rule_request(training: TrainingJobRecord, rule: RuleRecord) -> JsonDict:
    """Return the request of a rule's processing job, which is also the container's processingjobconfig.json."""
    own = rule.configuration.get("S3OutputPath")
    output = f"{own.rstrip('/')}/{training.name}" if own else training.profiler_path
    data = f"{training.profiler_path}/profiler-output"
    source = {"S3Uri": data, "LocalPath": RULE_INPUT, "S3DataType": "S3Prefix", "S3InputMode": "Continuous"}
    target = {"S3Uri": f"{output}/rule-output/{rule.name}", "LocalPath": RULE_OUTPUT}
    parameters = rule.configuration.get("RuleParameters", {})  # those that address the container, too
    return {
        "ProcessingJobName": rule.processing_job_name,
        "TrainingJobArn": training.arn,
        "AppSpecification": {"ImageUri": rule.configuration["RuleEvaluatorImage"]},
        "Environment": {name: str(value) for name, value in parameters.items()},
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
