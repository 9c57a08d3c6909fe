"""What the endpoint knows of its jobs: the request, the state, and how Describe… shows both."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import attrs

JsonDict = dict[str, Any]
REASON_LENGTH = 1024  # characters of FailureReason and StatusDetails
ENDED = ("Completed", "Failed", "Stopped")
# secondary status → what the service says at it
MESSAGES = {
    "Starting": "Launching requested ML instances",
    "Downloading": "Downloading input data",
    "Training": "Training image download completed. Training in progress.",
    "Uploading": "Uploading generated training model",
    "Stopping": "Stopping the training job",
    "Completed": "Training job completed",
    "Stopped": "Training job stopped",
    "MaxRuntimeExceeded": "Training job runtime exceeded MaxRuntimeInSeconds provided",
    "Failed": "Training job failed",
    "Updating": "Training job updated",
}
# parts of a request that Describe… does not give back as they are
NOT_SHOWN = ("Tags", "ProfilerConfig", "ProfilerRuleConfigurations")


def now() -> datetime:
    """The time, as the API shows it: UTC, to the millisecond."""
    time = datetime.now(timezone.utc)
    return time.replace(microsecond=time.microsecond // 1000 * 1000)


@attrs.define(eq=False)
class RuleJob:
    """One rule of a training job; the service runs it as a processing job."""

    configuration: JsonDict
    arn: str
    status: str = "InProgress"
    details: str = ""
    modified: datetime = attrs.field(factory=now)

    @property
    def name(self) -> str:
        """RuleConfigurationName."""
        return str(self.configuration["RuleConfigurationName"])

    def set(self, status: str, details: str = "") -> None:
        """Take a new status."""
        self.status, self.details, self.modified = status, details[:REASON_LENGTH], now()

    def describe(self) -> JsonDict:
        """One entry of ProfilerRuleEvaluationStatuses."""
        shown = {
            "RuleConfigurationName": self.name,
            "RuleEvaluationJobArn": self.arn,
            "RuleEvaluationStatus": self.status,
            "LastModifiedTime": self.modified,
        }
        return {**shown, "StatusDetails": self.details} if self.details else shown

    def describe_processing(self, training: TrainingJob) -> JsonDict:
        """DescribeProcessingJob's answer for the rule."""
        status = {"InProgress": "InProgress", "Error": "Failed", "Stopping": "Stopping", "Stopped": "Stopped"}
        shown = {
            "ProcessingJobName": self.arn.rpartition("/")[2],
            "ProcessingJobArn": self.arn,
            "ProcessingJobStatus": status.get(self.status, "Completed"),
            "AppSpecification": {"ImageUri": self.configuration["RuleEvaluatorImage"]},
            "Environment": dict(self.configuration.get("RuleParameters", {})),
            "RoleArn": training.request["RoleArn"],
            "CreationTime": training.start_time or training.creation_time,
            "LastModifiedTime": self.modified,
            "TrainingJobArn": training.arn,
        }
        return {**shown, "ExitMessage": self.details} if self.details else shown


@attrs.define(eq=False, slots=False)
class JobRecord:
    """What training and processing jobs have in common.  Guarded by `lock` where two threads may write.

    Attributes:
        request: what Create… was sent.
        arn: the job's ARN.
        region: where it "runs".
        folder: everything on disk that belongs to it.
        status: InProgress, Completed, Failed, Stopping, Stopped.
        failure: FailureReason.
    """

    request: JsonDict
    arn: str
    region: str
    folder: Path
    status: str = "InProgress"
    failure: str = ""
    creation_time: datetime = attrs.field(factory=now)
    last_modified_time: datetime = attrs.field(factory=now)
    start_time: datetime | None = None
    end_time: datetime | None = None
    stop_requested: threading.Event = attrs.field(factory=threading.Event)
    ended: threading.Event = attrs.field(factory=threading.Event)
    say: Callable[[str], None] = lambda _: None
    lock: threading.RLock = attrs.field(factory=threading.RLock)

    @property
    def tags(self) -> list[JsonDict]:
        """Tags of the request; moto's tagging calls change this list in place."""
        found: list[JsonDict] = self.request.setdefault("Tags", [])
        return found

    @tags.setter
    def tags(self, value: list[JsonDict]) -> None:
        self.request["Tags"] = value


@attrs.define(eq=False, slots=False)
class TrainingJob(JobRecord):
    """A training job; the names that moto's own Search and List calls read are properties here."""

    profiler_config: JsonDict | None = None
    rules: list[RuleJob] = attrs.field(factory=list)
    secondary: str = "Starting"
    transitions: list[JsonDict] = attrs.field(factory=list)
    metrics: dict[str, JsonDict] = attrs.field(factory=dict)

    @property
    def training_job_name(self) -> str:
        """TrainingJobName."""
        return str(self.request["TrainingJobName"])

    name = training_job_name

    @property
    def training_job_status(self) -> str:
        """TrainingJobStatus."""
        return self.status

    @property
    def training_end_time(self) -> datetime | None:
        """TrainingEndTime."""
        return self.end_time

    @property
    def profiling(self) -> bool:
        """Whether anything of the profiler is on."""
        return self.profiler_config is not None and not self.profiler_config.get("DisableProfiler", False)

    @property
    def profiler_uri(self) -> str | None:
        """Where the profile goes, without a slash at the end; None without a ProfilerConfig."""
        if self.profiler_config is None:
            return None
        base = self.profiler_config.get("S3OutputPath") or self.request["OutputDataConfig"]["S3OutputPath"]
        return f"{base.rstrip('/')}/{self.name}"

    @property
    def output_uri(self) -> str:
        """Where model and output go."""
        return f"{self.request['OutputDataConfig']['S3OutputPath'].rstrip('/')}/{self.name}/output"

    def move(self, secondary: str, status: str | None = None, message: str | None = None) -> None:
        """Take the next secondary status, with its time stamps."""
        with self.lock:
            time = now()
            if self.transitions:
                self.transitions[-1].setdefault("EndTime", time)
            entry: JsonDict = {"Status": secondary, "StartTime": time, "StatusMessage": message or MESSAGES[secondary]}
            if status in ENDED:
                entry["EndTime"] = self.end_time = time
            self.transitions.append(entry)
            self.secondary, self.last_modified_time = secondary, time
            if secondary == "Training":
                self.start_time = time
            self.status = status or self.status
        why = f": {self.failure.splitlines()[0]}" if status == "Failed" and self.failure else ""
        self.say(f"training job {self.name}: {secondary}{why}")

    def describe(self) -> JsonDict:
        """DescribeTrainingJob's answer."""
        with self.lock:
            shown = {key: value for key, value in self.request.items() if key not in NOT_SHOWN}
            shown |= {
                "TrainingJobArn": self.arn,
                "ModelArtifacts": {"S3ModelArtifacts": f"{self.output_uri}/model.tar.gz"},
                "TrainingJobStatus": self.status,
                "SecondaryStatus": self.secondary,
                "SecondaryStatusTransitions": [dict(entry) for entry in self.transitions],
                "CreationTime": self.creation_time,
                "LastModifiedTime": self.last_modified_time,
                "ProfilingStatus": "Enabled" if self.profiling else "Disabled",
            }
            if self.profiler_config is not None:
                shown["ProfilerConfig"] = dict(self.profiler_config)
            if self.rules:
                shown["ProfilerRuleConfigurations"] = [rule.configuration for rule in self.rules]
                shown["ProfilerRuleEvaluationStatuses"] = [rule.describe() for rule in self.rules]
            if self.metrics:
                shown["FinalMetricDataList"] = list(self.metrics.values())
            return shown | self._times()

    def _times(self) -> JsonDict:
        shown: JsonDict = {"FailureReason": self.failure} if self.failure else {}
        if self.start_time:
            shown["TrainingStartTime"] = self.start_time
        if self.end_time:
            shown["TrainingEndTime"] = self.end_time
        if self.start_time and self.end_time:
            seconds = max(1, round((self.end_time - self.start_time).total_seconds()))
            shown |= {"TrainingTimeInSeconds": seconds, "BillableTimeInSeconds": seconds}
        return shown

    @property
    def response_object(self) -> JsonDict:
        """The same, under the name that moto's Search reads."""
        return self.describe()

    gen_response_object = describe


@attrs.define(eq=False, slots=False)
class ProcessingJob(JobRecord):
    """A processing job."""

    exit_message: str = ""

    @property
    def processing_job_name(self) -> str:
        """ProcessingJobName."""
        return str(self.request["ProcessingJobName"])

    name = processing_job_name

    @property
    def processing_job_status(self) -> str:
        """ProcessingJobStatus."""
        return self.status

    @property
    def processing_end_time(self) -> datetime | None:
        """ProcessingEndTime."""
        return self.end_time

    def describe(self) -> JsonDict:
        """DescribeProcessingJob's answer."""
        with self.lock:
            shown = {key: value for key, value in self.request.items() if key != "Tags"}
            times = {"ProcessingStartTime": self.start_time, "ProcessingEndTime": self.end_time}
            words = {"FailureReason": self.failure, "ExitMessage": self.exit_message}
            return {
                **shown,
                "ProcessingJobArn": self.arn,
                "ProcessingJobStatus": self.status,
                "CreationTime": self.creation_time,
                "LastModifiedTime": self.last_modified_time,
                **{key: value for key, value in {**times, **words}.items() if value},
            }
