"""Runs a rule of a training job as the rule container would run: same folders, same variables, same status words."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from pathlib import Path

from sm_profiler.container import (
    JOB_NAME_VARIABLE,
    POLL_VARIABLE,
    PROCESSING_CONFIG,
    ROOT_VARIABLE,
    RULE_INPUT,
    RULE_OUTPUT,
    STOP_SIGNAL_VARIABLE,
    relocated,
)
from sm_profiler.local.logs import PROCESSING_GROUP, LogStream
from sm_profiler.local.process import JobProcess, describe_exit
from sm_profiler.local.records import JsonDict, RuleJob, TrainingJob
from sm_profiler.local.services import Services
from sm_profiler.local.transfer import Mirror

POLL_S = 1.0
LONGEST_AFTER_TRAINING_S = 900.0  # then it is stopped and ends as Error: no client waits for ever
WORDS = ("NoIssuesFound", "IssuesFound", "Error", "Stopped")
STATUS_FILE = "rule-status.json"


def read_status(folder: Path) -> JsonDict:
    """What the runner wrote last; empty where it wrote nothing that can be read."""
    for path in sorted(folder.rglob(STATUS_FILE)):
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(path.read_text("utf-8"))
            if isinstance(found, dict):
                return found
    return {}


class RuleRun(threading.Thread):
    """The life of one rule job, in a thread."""

    def __init__(self, services: Services, job: TrainingJob, rule: RuleJob) -> None:
        super().__init__(name=f"rule {rule.name}", daemon=True)
        self.services, self.job, self.rule = services, job, rule
        self.folder = job.folder / "rules" / rule.name
        self.process: JobProcess | None = None
        self._deadline = float("inf")
        self._closing = threading.Event()

    @property
    def root(self) -> Path:
        """The counterpart of /opt/ml."""
        return self.folder / "ml"

    @property
    def output_uri(self) -> str:
        """Where the rule's output goes, without a slash at the end."""
        own = self.rule.configuration.get("S3OutputPath")
        base = f"{own.rstrip('/')}/{self.job.name}" if own else self.job.profiler_uri
        return f"{base}/rule-output/{self.rule.name}"

    @property
    def stop_file(self) -> Path:
        """The file whose appearance tells the runner that training is over."""
        return self.root / "stop-signal"

    def training_ended(self) -> None:
        """Tell the runner that nothing more will come."""
        self._deadline = time.monotonic() + LONGEST_AFTER_TRAINING_S
        with contextlib.suppress(OSError):
            self.stop_file.write_text(str(int(time.time())), "utf-8")

    def close(self) -> None:
        """The endpoint ends: stop now."""
        self._closing.set()
        if self.process is not None:
            self.process.stop()

    def run(self) -> None:
        """Run the rule to a final status."""
        try:
            self._evaluate()
        except Exception as error:  # noqa: BLE001 - the status must become final whatever broke
            self.rule.set("Error", f"InternalServerError: {error!r}")
        if self.rule.status not in WORDS:
            self.rule.set("Error", "InternalServerError: the rule ended without a status")
        self.services.say(f"rule {self.rule.name} of {self.job.name}: {self.rule.status} {self.rule.details}".rstrip())

    def _evaluate(self) -> None:
        region = self.job.region
        s3 = self.services.client("s3", region)
        output = relocated(RULE_OUTPUT, self.root)
        config = relocated(PROCESSING_CONFIG, self.root)
        for folder in (output, config.parent, self.folder / "home"):
            folder.mkdir(parents=True, exist_ok=True)
        config.write_text(json.dumps(self.container_config()), "utf-8")
        name = self.rule.arn.rpartition("/")[2]
        log = LogStream(self.services.client("logs", region), PROCESSING_GROUP, f"{name}/algo-1-{int(time.time())}")
        mirror = Mirror(s3, output, self.output_uri, log.write)
        self.process = JobProcess(
            [sys.executable, "-m", "sm_profiler", "rules", "run"], self.environment(), self.folder, log.write, 5.0
        )
        while (code := self.process.wait(POLL_S)) is None:
            mirror.upload_new()
            if time.monotonic() > self._deadline or self._closing.is_set():
                self.process.stop()
        mirror.upload_new()
        log.close()
        self.rule.set(*self._verdict(code, log.tail))

    def _verdict(self, code: int, tail: list[str]) -> tuple[str, str]:
        if self._closing.is_set():
            return "Stopped", "the local endpoint was stopped"
        if self.process is not None and self.process.stopped and time.monotonic() > self._deadline:
            return "Error", f"stopped: not finished {LONGEST_AFTER_TRAINING_S:.0f} s after the training"
        found = read_status(self.root)
        status = str(found.get("RuleEvaluationStatus", found.get("status", "")))
        if status in WORDS and (code == 0 or status != "NoIssuesFound"):
            return status, str(found.get("StatusDetails", found.get("details", "")) or "")
        last = tail[-1] if tail else ""
        return "Error", f"InternalServerError: the rule's process ended with {describe_exit(code)}: {last}"

    def parameters(self) -> dict[str, str]:
        """The rule's parameters, the container's own words among them."""
        return {name: str(value) for name, value in self.rule.configuration.get("RuleParameters", {}).items()}

    def environment(self) -> dict[str, str]:
        """All variables of the rule's process."""
        return {
            "LANG": "C.UTF-8",
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.folder / "home"),
            "TMPDIR": str(self.services.temporary_folder()),
            "PYTHONUNBUFFERED": "1",
            **self.services.environment(self.job.region),
            **self.parameters(),
            ROOT_VARIABLE: str(self.root),
            POLL_VARIABLE: "2",  # S3 is on this machine: asking costs next to nothing
            STOP_SIGNAL_VARIABLE: str(self.stop_file),
            JOB_NAME_VARIABLE: self.job.name,
            "TRAINING_JOB_ARN": self.job.arn,
        }

    def container_config(self) -> JsonDict:
        """processingjobconfig.json."""
        data = f"{self.job.profiler_uri}/profiler-output"
        source = {"S3Uri": data, "LocalPath": RULE_INPUT, "S3DataType": "S3Prefix", "S3InputMode": "Continuous"}
        target = {"S3Uri": self.output_uri, "LocalPath": RULE_OUTPUT}
        return {
            "ProcessingJobName": self.rule.arn.rpartition("/")[2],
            "ProcessingJobArn": self.rule.arn,
            "TrainingJobArn": self.job.arn,
            "AppSpecification": {"ImageUri": self.rule.configuration["RuleEvaluatorImage"]},
            "Environment": self.parameters(),
            "ProcessingInputs": [{"InputName": "profiler", "S3Input": source}],
            "ProcessingOutputConfig": {"Outputs": [{"OutputName": "rule", "S3Output": target}]},
        }
