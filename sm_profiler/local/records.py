"""Records of jobs: the request, the state, and the Describe… responses built from both."""

from __future__ import annotations

import re
import threading
import zlib
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import attrs

from sm_profiler.rules.rule_job import Status
from sm_profiler.settings import AUTO

JsonDict = dict[str, Any]
MAX_COMPONENT = 100  # characters of a rule's folder
MAX_REASON = 1024  # characters of FailureReason and StatusDetails
ENDED = ("Completed", "Failed", "Stopped")
NO_TENSORS = "sm-profiler records and judges no tensors"
FINAL_RULE_STATUSES = tuple(status.value for status in (Status.NO_ISSUES, Status.ISSUES, Status.ERROR, Status.STOPPED))
# secondary status → the service's StatusMessage
MESSAGES = {
    "Starting": "Launching requested ML instances",
    "Downloading": "Downloading input data",
    "Interrupted": "The training job was interrupted: its instance was reclaimed",
    "Restarting": "Restarting the training job after an internal error",
    "Training": "Training image download completed. Training in progress.",
    "Uploading": "Uploading generated training model",
    "Stopping": "Stopping the training job",
    "Completed": "Training job completed",
    "Stopped": "Training job stopped",
    "MaxRuntimeExceeded": "Training job runtime exceeded MaxRuntimeInSeconds provided",
    "Failed": "Training job failed",
    "Updating": "Training job updated",
}
# parts of a request that Describe… does not return unchanged
NOT_SHOWN = ("Tags", "ProfilerConfig", "ProfilerRuleConfigurations")


def now() -> datetime:
    """Return the time as the API shows it: UTC, in milliseconds."""
    time = datetime.now(timezone.utc)
    return time.replace(microsecond=time.microsecond // 1000 * 1000)


def path_component(name: str) -> str:
    """Return a name as one path component, unchanged if it already is a component; different names stay different."""
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:MAX_COMPONENT]
    return name if name == plain else f"{plain}-{zlib.crc32(name.encode('utf-8', 'replace')):08x}"


@attrs.define(eq=False)
class RuleRecord:
    """A rule of a training job; the service runs it as a processing job."""

    configuration: JsonDict
    arn: str
    status: str = "InProgress"
    details: str = ""
    modified: datetime = attrs.field(factory=now)

    @property
    def name(self) -> str:
        return str(self.configuration["RuleConfigurationName"])

    @property
    def folder_name(self) -> str:
        """The name as one safe path component: the service allows any characters, `../` included."""
        return path_component(self.name)

    @property
    def processing_job_name(self) -> str:
        """Name of the rule's processing job."""
        return self.arn.rpartition("/")[2]

    def set(self, status: str, details: str = "") -> None:
        self.status, self.details, self.modified = status, details[:MAX_REASON], now()

    def describe(self) -> JsonDict:
        shown = {
            "RuleConfigurationName": self.name,
            "RuleEvaluationJobArn": self.arn,
            "RuleEvaluationStatus": self.status,
            "LastModifiedTime": self.modified,
        }
        return {**shown, "StatusDetails": self.details} if self.details else shown

    def describe_processing(self, training: TrainingJobRecord) -> JsonDict:
        """Return the DescribeProcessingJob response for the rule."""
        status = {"InProgress": "InProgress", "Error": "Failed", "Stopping": "Stopping", "Stopped": "Stopped"}
        shown = {
            "ProcessingJobName": self.processing_job_name,
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
    """Common part of training and processing jobs; `lock` guards what two threads may write.

    Attributes:
        request: the Create… request.
        arn: the job's ARN.
        region: the region that it was created in.
        folder: all its files.
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
    log_event: Callable[[str], None] = lambda _: None
    lock: threading.RLock = attrs.field(factory=threading.RLock)

    @property
    def tags(self) -> list[JsonDict]:
        """Tags of the request; moto's tagging calls modify this list in place."""
        found: list[JsonDict] = self.request.setdefault("Tags", [])
        return found

    @tags.setter
    def tags(self, value: list[JsonDict]) -> None:
        self.request["Tags"] = value


@attrs.define(eq=False, slots=False)
class TrainingJobRecord(JobRecord):
    """A training job; its properties are the names that moto's Search and List calls read."""

    profiler_config: JsonDict | None = None
    profiler_path: str | None = None  # S3 URI of the profile, without a trailing slash; fixed once the profiler was on
    hook_was_added: bool = False  # its processes have the variable that switches the hook on, and its request has not
    profile_stored: bool = True  # False if the profile's bucket does not exist or refuses uploads
    rules: list[RuleRecord] = attrs.field(factory=list)
    secondary: str = "Starting"
    transitions: list[JsonDict] = attrs.field(factory=list)
    metrics: dict[str, JsonDict] = attrs.field(factory=dict)

    @property
    def training_job_name(self) -> str:
        return str(self.request["TrainingJobName"])

    name = training_job_name

    @property
    def training_job_status(self) -> str:
        return self.status

    @property
    def training_end_time(self) -> datetime | None:
        return self.end_time

    @property
    def profiling(self) -> bool:
        return self.profiler_config is not None and not self.profiler_config.get("DisableProfiler", False)

    @property
    def hook_is_added(self) -> bool:
        """True if the profiler is on, and the request does not itself switch the hook on or off, as SageMaker needs it to."""
        return self.profiling and AUTO.name not in self.request.get("Environment", {})

    @property
    def tensor_rules(self) -> list[str]:
        """Names of Debugger's rules on tensors in the request."""
        return [str(one.get("RuleConfigurationName", "")) for one in self.request.get("DebugRuleConfigurations", ())]

    def configure_profiler(self, config: JsonDict) -> None:
        """Take over a configuration, which may be only what an update changes."""
        self.profiler_config = {**(self.profiler_config or {}), **config}
        if self.profiling and self.profiler_path is None:
            self.profiler_path = f"{self._profiler_base(self.profiler_config)}/{self.name}"

    def moves_profile(self, config: JsonDict) -> bool:
        """Return whether a configuration has another S3 path than the profile, which the service refuses."""
        return self.profiler_path not in (
            None,
            f"{self._profiler_base({**(self.profiler_config or {}), **config})}/{self.name}",
        )

    def _profiler_base(self, config: JsonDict) -> str:
        return str(config.get("S3OutputPath") or self.request["OutputDataConfig"]["S3OutputPath"]).rstrip("/")

    @property
    def output_uri(self) -> str:
        """s3:// URI of model and output archives."""
        return f"{self.request['OutputDataConfig']['S3OutputPath'].rstrip('/')}/{self.name}/output"

    def move(self, secondary: str, status: str | None = None, message: str | None = None) -> None:
        """Enter the next secondary status and record its timestamps."""
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
                self.start_time = self.start_time or time  # of the first attempt
            self.status = status or self.status
        reason = f": {self.failure.splitlines()[0]}" if status == "Failed" and self.failure else ""
        self.log_event(f"training job {self.name}: {secondary}{reason}")

    def describe(self) -> JsonDict:
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
                "ProfilingStatus": "Enabled" if self.profiling and self.profile_stored else "Disabled",
            }
            if self.hook_was_added:
                shown["Environment"] = {**shown.get("Environment", {}), AUTO.name: "1"}
            if self.profiler_config is not None:
                shown["ProfilerConfig"] = dict(self.profiler_config)
            if self.rules:
                shown["ProfilerRuleConfigurations"] = [rule.configuration for rule in self.rules]
                shown["ProfilerRuleEvaluationStatuses"] = [rule.describe() for rule in self.rules]
            if self.tensor_rules:
                shown["DebugRuleEvaluationStatuses"] = [
                    {
                        "RuleConfigurationName": name,
                        "RuleEvaluationStatus": Status.ERROR.value,
                        "StatusDetails": f"not evaluated: {NO_TENSORS}",
                        "LastModifiedTime": self.creation_time,
                    }
                    for name in self.tensor_rules
                ]
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
        """The description, under the name that moto's Search reads."""
        return self.describe()

    gen_response_object = describe


@attrs.define(eq=False, slots=False)
class ProcessingJobRecord(JobRecord):
    """A processing job."""

    exit_message: str = ""

    @property
    def processing_job_name(self) -> str:
        return str(self.request["ProcessingJobName"])

    name = processing_job_name

    @property
    def processing_job_status(self) -> str:
        return self.status

    @property
    def processing_end_time(self) -> datetime | None:
        return self.end_time

    def describe(self) -> JsonDict:
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
