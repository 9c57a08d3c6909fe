"""Runs one processing job: the rule image, or a script with an entry point of its own."""

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
    PROCESSING_CONFIG,
    PROCESSING_RESOURCE_CONFIG,
    ROOT_VARIABLE,
    relocated,
    relocated_text,
)
from sm_profiler.errors import ProfilerError
from sm_profiler.local.logs import PROCESSING_GROUP, LogStream
from sm_profiler.local.overlay import create_overlay
from sm_profiler.local.process import JobProcess, describe_exit
from sm_profiler.local.records import REASON_LENGTH, ProcessingJob, now
from sm_profiler.local.rule_jobs import read_status
from sm_profiler.local.services import Services
from sm_profiler.local.transfer import Mirror, download

POLL_S = 0.5
RULE_IMAGE = re.compile(r"(sagemaker-debugger-rules|sm-profiler)")
DEFAULT_MAX_RUNTIME_S = 86400


class ProcessingRun(threading.Thread):
    """The life of one processing job, in a thread."""

    def __init__(self, services: Services, job: ProcessingJob) -> None:
        super().__init__(name=f"processing {job.name}", daemon=True)
        self.services, self.job = services, job
        self.process: JobProcess | None = None
        self._mirrors: list[Mirror] = []

    @property
    def root(self) -> Path:
        """The counterpart of /opt/ml."""
        return self.job.folder / "ml"

    def map(self, text: str) -> str:
        """A text with /opt/ml replaced by the job's folder."""
        return relocated_text(text, self.root)

    def close(self) -> None:
        """The endpoint ends: stop now."""
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
        except Exception as error:  # noqa: BLE001 - no client may wait for ever, whatever broke in here
            status, reason = "Failed", f"InternalServerError: the local endpoint failed: {error!r}"
        with self.job.lock:
            self.job.failure = reason[:REASON_LENGTH]
            self.job.end_time = self.job.last_modified_time = now()
            self.job.status = status
        self.services.say(f"processing job {self.job.name}: {status} {self.job.failure}".rstrip())
        self.job.ended.set()

    def _process(self) -> tuple[str, str]:
        job, request = self.job, self.job.request
        s3 = self.services.client("s3", job.region)
        job.start_time = now()
        started = int(time.time())
        stream = f"{job.name}/algo-1-{started}"
        log = LogStream(self.services.client("logs", job.region), PROCESSING_GROUP, stream)
        try:
            self._prepare(s3, log)
            command = self._command()
            limit = request.get("StoppingCondition", {}).get("MaxRuntimeInSeconds", DEFAULT_MAX_RUNTIME_S)
            self.process = JobProcess(command, self._environment(), self.root, log.write)
            end = time.monotonic() + limit
            while (code := self.process.wait(POLL_S)) is None:
                self._upload()
                if job.stop_requested.is_set() or time.monotonic() > end:
                    self.process.stop()
            self._upload()
        finally:
            log.close()
        found = read_status(self.root)
        job.exit_message = str(found.get("StatusDetails", "") or "")[:REASON_LENGTH]
        if job.stop_requested.is_set():
            return "Stopped", ""
        if self.process.stopped:
            return "Stopped", "MaxRuntimeExceeded"
        return (
            ("Failed", f"AlgorithmError: {describe_exit(code)}: {' '.join(log.tail[-3:])}")
            if code
            else ("Completed", "")
        )

    def _prepare(self, s3: Any, log: LogStream) -> None:
        for folder in (relocated(PROCESSING_CONFIG, self.root).parent, self.job.folder / "home"):
            folder.mkdir(parents=True, exist_ok=True)
        config = {**self.job.request, "ProcessingJobArn": self.job.arn}
        relocated(PROCESSING_CONFIG, self.root).write_text(json.dumps(config), "utf-8")
        hosts = {"current_host": "algo-1", "hosts": ["algo-1"]}
        relocated(PROCESSING_RESOURCE_CONFIG, self.root).write_text(json.dumps(hosts), "utf-8")
        for entry in self.job.request.get("ProcessingInputs", ()):
            source = entry.get("S3Input")
            if source is None or not source.get("LocalPath"):
                raise ProfilerError(
                    f"input {entry['InputName']}: the local endpoint has S3 inputs with a LocalPath only"
                )
            if not self.is_rule:  # the rule's runner reads S3 itself, as it follows a running job
                download(s3, source["S3Uri"], Path(self.map(source["LocalPath"])))
        for entry in self.job.request.get("ProcessingOutputConfig", {}).get("Outputs", ()):
            target = entry.get("S3Output")
            if target is not None:
                folder = Path(self.map(target["LocalPath"]))
                folder.mkdir(parents=True, exist_ok=True)
                self._mirrors.append(Mirror(s3, folder, target["S3Uri"].rstrip("/"), log.write))

    @property
    def is_rule(self) -> bool:
        """Whether the job is a rule's: a rule image, or an environment that names a rule, and no entry point of its own."""
        application = self.job.request["AppSpecification"]
        named = "rule_to_invoke" in self.job.request.get("Environment", {})
        return (named or bool(RULE_IMAGE.search(application["ImageUri"]))) and not application.get(
            "ContainerEntrypoint"
        )

    def _command(self) -> list[str]:
        if self.is_rule:
            return [sys.executable, "-m", "sm_profiler", "rules", "run"]
        application = self.job.request["AppSpecification"]
        words = [*application.get("ContainerEntrypoint", ()), *application.get("ContainerArguments", ())]
        if not application.get("ContainerEntrypoint"):
            raise ProfilerError(
                f"nothing to run: the local endpoint does not start the image {application['ImageUri']!r};"
                " it runs rule images and jobs with a ContainerEntrypoint"
            )
        return [self.map(word) for word in words]

    def _environment(self) -> dict[str, str]:
        python = Path(sys.executable) if self.is_rule else create_overlay(self.job.folder / "env")
        own = {name: self.map(value) for name, value in self.job.request.get("Environment", {}).items()}
        return {
            "LANG": "C.UTF-8",
            "PATH": f"{python.parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.job.folder / "home"),
            "TMPDIR": str(self.services.temporary_folder()),
            "PYTHONUNBUFFERED": "1",
            **self.services.environment(self.job.region),
            ROOT_VARIABLE: str(self.root),
            "PROCESSING_JOB_NAME": self.job.name,
            "PROCESSING_JOB_ARN": self.job.arn,
            **own,
        }

    def _upload(self) -> None:
        for mirror in self._mirrors:
            with contextlib.suppress(Exception):  # the next round tries again
                mirror.upload_new()
