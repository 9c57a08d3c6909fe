"""moto's SageMaker backend and responses, subclassed so that jobs run, and requests that the service refuses are refused."""

from __future__ import annotations

import contextlib
import json
import math
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import moto.iam.urls
import moto.sagemaker.urls
from moto.core.base_backend import BackendDict
from moto.core.exceptions import ServiceException
from moto.core.responses import ActionResult, EmptyResult
from moto.iam.responses import IamResponse
from moto.sagemaker.exceptions import AWSValidationException, ResourceInUseException
from moto.sagemaker.models import SageMakerModelBackend
from moto.sagemaker.responses import SageMakerResponse

from sm_profiler.config.api import interval_problem, rule_problems
from sm_profiler.launch.request import check_request
from sm_profiler.local.output import expression_problem
from sm_profiler.local.processing import ProcessingRun
from sm_profiler.local.records import (
    ENDED,
    JobRecord,
    JsonDict,
    ProcessingJobRecord,
    RuleRecord,
    TrainingJobRecord,
    path_component,
)
from sm_profiler.local.services import Services
from sm_profiler.local.training import TrainingRun

CHECKED = (
    *(f"{verb}TrainingJob" for verb in ("Create", "Describe", "Update", "Stop")),
    *(f"{verb}ProcessingJob" for verb in ("Create", "Describe", "Stop")),
    *("ListTrainingJobs", "ListProcessingJobs", "Search", "AddTags", "ListTags"),
)
NEEDED = ("AlgorithmSpecification", "ResourceConfig", "OutputDataConfig")


def refuse(problems: list[str]) -> None:
    """Refuse a request that has problems, phrased as the service does."""
    if problems:
        count = f"{len(problems)} validation error{'s' if len(problems) > 1 else ''} detected: "
        raise AWSValidationException(count + "; ".join(problems))


def check_profiler(config: JsonDict | None, rules: list[JsonDict], names: list[str]) -> list[str]:
    """Return the problems of a profiler configuration beyond the service model."""
    interval = interval_problem((config or {}).get("ProfilingIntervalInMilliseconds"))
    problems = [interval] if interval is not None else []
    return problems + rule_problems((config or {}).get("DisableProfiler"), rules, names)


def check_create_training(request: JsonDict) -> None:
    """Refuse an invalid new training job."""
    problems = [f"{name}: required by the local endpoint" for name in NEEDED if name not in request]
    problems += check_profiler(request.get("ProfilerConfig"), request.get("ProfilerRuleConfigurations", []), [])
    for number, channel in enumerate(request.get("InputDataConfig", [])):
        if channel["ChannelName"] in (".", ".."):  # the service model's pattern allows both
            problems.append(f"InputDataConfig[{number}].ChannelName: {channel['ChannelName']!r} is not a folder name")
    for number, metric in enumerate(request.get("AlgorithmSpecification", {}).get("MetricDefinitions", [])):
        if problem := expression_problem(metric["Regex"]):
            problems.append(f"AlgorithmSpecification.MetricDefinitions[{number}].Regex: {problem}")
    refuse(problems)


def check_update_training(job: TrainingJobRecord, request: JsonDict) -> None:
    if job.status != "InProgress":
        raise AWSValidationException(f"Training job {job.name} cannot be updated: its status is {job.status}")
    config = {**(job.profiler_config or {}), **(request.get("ProfilerConfig") or {})}
    rules = request.get("ProfilerRuleConfigurations", [])
    problems = check_profiler(config, rules, [rule.name for rule in job.rules])
    if job.moves_profile(config):
        problems.append(
            f"ProfilerConfig.S3OutputPath cannot be changed: the profile is stored under {job.profiler_path}"
        )
    refuse(problems)


CLOSE_S = 30.0


class Jobs:
    """The running jobs; calls do not wait for them, except `close`."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._lock = threading.Lock()
        self._training: dict[str, TrainingRun] = {}
        self._processing: list[ProcessingRun] = []

    def folder_for(self, kind: str, name: str) -> Path:
        """Create and return a job's folder; the service model's pattern keeps separators out of its name."""
        folder = self._services.folder / "jobs" / kind / name
        number = 1
        while folder.exists():  # the same name in another region
            number += 1
            folder = folder.with_name(f"{name}.{number}")
        folder.mkdir(parents=True)
        return folder

    def start_training(self, job: TrainingJobRecord) -> None:
        with self._lock:
            job.log_event = self._services.log_event
            run = self._training[job.arn] = TrainingRun(self._services, job)
            run.start()

    def update_training(self, job: TrainingJobRecord, config: JsonDict | None, rules: list[RuleRecord]) -> None:
        """Change the profiler of a running job."""
        with job.lock:
            if config is not None:
                job.configure_profiler(config)
            job.rules.extend(rules)
        self._training[job.arn].update_profiler()

    def interrupt_training(self, name: str) -> bool:
        """Take a running training job's machines away; return False if there is no such job."""
        with self._lock:
            runs = [run for run in self._training.values() if run.job.name == name and run.job.status not in ENDED]
        for run in runs:
            run.interrupted.set()
        return bool(runs)

    def start_processing(self, job: ProcessingJobRecord) -> None:
        with self._lock:
            run = ProcessingRun(self._services, job)
            self._processing.append(run)
            run.start()

    def close(self) -> None:
        """Stop all jobs and wait for their end."""
        with self._lock:
            runs: list[Any] = [*self._training.values(), *self._processing]
        for run in runs:
            run.close()
        for run in runs:
            run.join(CLOSE_S)
            for rule in getattr(run, "rules", ()):
                rule.join(CLOSE_S)


Record = TypeVar("Record", bound=JobRecord)
GONE = "Requested resource not found."


class MalformedRequestError(Exception):
    """The body of a request is not what its operation expects."""


class LocalBackend(SageMakerModelBackend):
    """One account and region; holds our records, so that moto's List, Search and tagging calls work on them."""

    training_jobs: dict[str, TrainingJobRecord]  # type: ignore[assignment] # in place of moto's own class
    processing_jobs: dict[str, ProcessingJobRecord]  # type: ignore[assignment] # in place of moto's own class

    @property
    def _url_module(self) -> Any:
        return moto.sagemaker.urls

    def arn(self, kind: str, name: str) -> str:
        return f"arn:{self.partition}:sagemaker:{self.region_name}:{self.account_id}:{kind}/{name}"

    def find(self, jobs: dict[str, Any], name: str) -> Any:
        if name not in jobs:
            raise AWSValidationException(GONE)
        return jobs[name]

    def rule_job(self, job: str, configuration: JsonDict) -> RuleRecord:
        """Return the record of a new rule, named as the service names its processing jobs, within 63 characters."""
        rule = configuration["RuleConfigurationName"]
        number = zlib.crc32(f"{job}/{rule}".encode("utf-8", "replace"))
        name = f"{job[:26]}-{path_component(rule)[:26]}-{number:08x}"
        return RuleRecord(configuration, self.arn("processing-job", name))

    def new_training_job(self, request: JsonDict, jobs: Jobs) -> TrainingJobRecord:
        job = self._new_job("Training", TrainingJobRecord, self.training_jobs, request, jobs)
        if (config := request.get("ProfilerConfig")) is not None:
            job.configure_profiler(config)
        job.rules = [self.rule_job(job.name, rule) for rule in request.get("ProfilerRuleConfigurations", ())]
        return job

    def new_processing_job(self, request: JsonDict, jobs: Jobs) -> ProcessingJobRecord:
        return self._new_job("Processing", ProcessingJobRecord, self.processing_jobs, request, jobs)

    def _new_job(
        self, kind: str, record: type[Record], known: dict[str, Record], request: JsonDict, jobs: Jobs
    ) -> Record:
        name, lower = request[f"{kind}JobName"], kind.lower()
        if name in known:
            raise ResourceInUseException(f"{kind} job names must be unique within an AWS account and region")
        folder = jobs.folder_for(lower, name)
        job = known[name] = record(request, self.arn(f"{lower}-job", name), self.region_name, folder)
        return job


# moto reports these jobs as Completed at once, though nothing has run
REFUSED = {
    "CreateHyperParameterTuningJob": "The local endpoint runs no tuning jobs: run one trial as a training job, with fixed hyperparameters",
    "CreateAutoMLJob": "The local endpoint runs no AutoML jobs",
    "CreateAutoMLJobV2": "The local endpoint runs no AutoML jobs",
    "CreateCompilationJob": "The local endpoint runs no compilation jobs",
    "CreateTransformJob": "The local endpoint runs no transform jobs",
}


class LocalSageMakerResponse(SageMakerResponse):
    """Answers SageMaker calls; calls not defined here are moto's."""

    jobs: ClassVar[Jobs]
    backends: ClassVar[Any]

    @property
    def sagemaker_backend(self) -> LocalBackend:
        """Backend of the caller's account and region."""
        try:
            found: LocalBackend = self.backends[self.current_account][self.region]
        except KeyError:
            raise AWSValidationException(f"there is no region {self.region}") from None
        return found

    @property
    def request_body(self) -> JsonDict:
        """The request as the client sent it, before moto drops fields that it does not support."""
        found = json.loads(self.body or "{}")
        if not isinstance(found, dict):
            raise MalformedRequestError("the request must be an object")
        return without_nulls(found)

    def setup_class(self, *args: Any, **options: Any) -> None:
        try:
            super().setup_class(*args, **options)
        except Exception as error:
            raise MalformedRequestError(f"the request cannot be parsed: {error}") from error

    def call_action(self) -> Any:
        """Check the request against the service model, then answer it."""
        try:
            action = self._get_action()
            if action in REFUSED:
                raise AWSValidationException(REFUSED[action])
            if action in CHECKED:
                refuse(check_request(action, self.request_body))
            return super().call_action()
        except (ValueError, RecursionError) as error:
            raise MalformedRequestError(f"the request cannot be read: {error}") from error
        except ServiceException as error:
            return self._answer(error)
        except NotImplementedError:
            return self._answer(AWSValidationException(f"The local endpoint does not support {self._get_action()}"))

    def _answer(self, error: ServiceException) -> Any:
        status, headers, body = self.serialized(ActionResult(error))
        headers["status"] = str(status)
        return status, headers, body

    def _training_job(self) -> TrainingJobRecord:
        backend = self.sagemaker_backend
        job: TrainingJobRecord = backend.find(backend.training_jobs, self._get_param("TrainingJobName"))
        return job

    def create_training_job(self) -> ActionResult:
        """CreateTrainingJob: start a job."""
        request = self.request_body
        check_create_training(request)
        job = self.sagemaker_backend.new_training_job(request, self.jobs)
        self.jobs.start_training(job)
        return ActionResult({"TrainingJobArn": job.arn})

    def describe_training_job(self) -> ActionResult:
        return ActionResult(self._training_job().describe())

    def stop_training_job(self) -> ActionResult:
        self._stop(self._training_job())
        return EmptyResult()

    def update_training_job(self) -> ActionResult:
        """UpdateTrainingJob: change the profiler of a running job."""
        request, job = self.request_body, self._training_job()
        check_update_training(job, request)
        new = [
            self.sagemaker_backend.rule_job(job.name, rule) for rule in request.get("ProfilerRuleConfigurations", ())
        ]
        self.jobs.update_training(job, request.get("ProfilerConfig"), new)
        return ActionResult({"TrainingJobArn": job.arn})

    def list_training_jobs(self) -> ActionResult:
        return ActionResult(summaries("Training", self.sagemaker_backend.training_jobs.values(), self.request_body))

    def create_processing_job(self) -> ActionResult:
        """CreateProcessingJob: start a job."""
        job = self.sagemaker_backend.new_processing_job(self.request_body, self.jobs)
        self.jobs.start_processing(job)
        return ActionResult({"ProcessingJobArn": job.arn})

    def describe_processing_job(self) -> ActionResult:
        """DescribeProcessingJob, also for rule jobs."""
        backend = self.sagemaker_backend
        name = self._get_param("ProcessingJobName")
        for training in backend.training_jobs.values():
            for rule in training.rules:
                if rule.processing_job_name == name:
                    return ActionResult(rule.describe_processing(training))
        return ActionResult(backend.find(backend.processing_jobs, name).describe())

    def list_processing_jobs(self) -> ActionResult:
        return ActionResult(summaries("Processing", self.sagemaker_backend.processing_jobs.values(), self.request_body))

    def stop_processing_job(self) -> ActionResult:
        backend = self.sagemaker_backend
        self._stop(backend.find(backend.processing_jobs, self._get_param("ProcessingJobName")))
        return EmptyResult()

    @staticmethod
    def _stop(job: JobRecord) -> None:
        with job.lock:
            if job.status in ENDED:
                raise AWSValidationException(f"The request was rejected because the job is in status {job.status}.")
            job.status = "Stopping"
            job.stop_requested.set()


ORDERS: dict[str, Callable[[Any], Any]] = {
    "Name": lambda job: job.name,
    "CreationTime": lambda job: job.creation_time,
    "Status": lambda job: job.status,
}


def summaries(kind: str, jobs: Iterable[Any], request: JsonDict) -> JsonDict:
    """Answer a List call: moto compares times without a zone, cuts pages before it filters, and sorts nothing."""
    found = [job for job in jobs if is_listed(job, request)]
    found.sort(key=ORDERS[request.get("SortBy", "CreationTime")], reverse=request.get("SortOrder") == "Descending")
    token = str(request.get("NextToken") or 0)
    if not (token.isdecimal() and token.isascii() and len(token) < 10):
        raise AWSValidationException(f"Invalid pagination token: {token}")
    start, end = int(token), int(token) + int(request.get("MaxResults", len(found)))
    shown: JsonDict = {f"{kind}JobSummaries": [summary(kind, job) for job in found[start:end]]}
    return {**shown, "NextToken": str(end)} if end < len(found) else shown


def summary(kind: str, job: Any) -> JsonDict:
    known = job.describe()
    names = (
        f"{kind}JobName",
        f"{kind}JobArn",
        f"{kind}JobStatus",
        f"{kind}EndTime",
        "CreationTime",
        "LastModifiedTime",
    )
    return {name: known[name] for name in names if name in known}


def is_listed(job: Any, request: JsonDict) -> bool:
    """Return whether a job has the name, the status and the times that a List call asks for."""
    if request.get("NameContains", "") not in job.name:
        return False
    if request.get("StatusEquals", job.status) != job.status:
        return False
    return all(
        seconds(request, f"{time}After", -math.inf) < at.timestamp() < seconds(request, f"{time}Before", math.inf)
        for time, at in (("CreationTime", job.creation_time), ("LastModifiedTime", job.last_modified_time))
    )


def seconds(request: JsonDict, name: str, default: float) -> float:
    """Return a time of a request, seconds since the epoch, as clients of this protocol send it."""
    value = request.get(name, default)
    if not isinstance(value, int | float):
        refuse([f"{name}: {value!r} is not a number of seconds"])
    return float(value)


def without_nulls(request: JsonDict) -> JsonDict:
    """Return a request without null members, which the service takes as absent."""
    return {
        name: without_nulls(value) if isinstance(value, dict) else value
        for name, value in request.items()
        if value is not None
    }


class LocalIamResponse(IamResponse):
    """moto's IAM with the call that SDK v3 makes before it launches a job."""

    def simulate_principal_policy(self) -> ActionResult:
        """SimulatePrincipalPolicy: everything is allowed."""
        actions = self._get_param("ActionNames") or []
        resources = self._get_param("ResourceArns") or ["*"]
        allowed = [
            {"EvalActionName": action, "EvalResourceName": resource, "EvalDecision": "allowed"}
            for action in actions
            for resource in resources
        ]
        return ActionResult({"EvaluationResults": allowed, "IsTruncated": False})


@contextlib.contextmanager
def swapped_urls(jobs: Jobs) -> Iterator[None]:
    """Make moto's server answer SageMaker and IAM calls with the classes above while the block runs."""
    backends = BackendDict(LocalBackend, "sagemaker")
    sagemaker = type("LocalSageMaker", (LocalSageMakerResponse,), {"jobs": jobs, "backends": backends})
    swaps: list[tuple[dict[str, Callable[..., Any]], type[Any]]] = [
        (moto.sagemaker.urls.url_paths, sagemaker),
        (moto.iam.urls.url_paths, LocalIamResponse),
    ]
    before = [dict(paths) for paths, _ in swaps]
    try:
        for paths, response in swaps:
            paths["{0}/$"] = response.dispatch
        yield
    finally:
        for (paths, _), old in zip(swaps, before, strict=True):
            paths.clear()
            paths.update(old)
