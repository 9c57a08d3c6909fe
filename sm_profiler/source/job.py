"""Location of the profiler output of a SageMaker training job."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from sm_profiler.config import Profile, config_from_environment, load_profile
from sm_profiler.container import ISOLATED_FOLDER
from sm_profiler.errors import ConfigError, SourceError
from sm_profiler.formats.layout import FRAMEWORK, OUTPUT, SYSTEM
from sm_profiler.formatting import duration
from sm_profiler.printable import cut, printable
from sm_profiler.settings import AUTO, CONFIG, ROTATE_SECONDS
from sm_profiler.storage import open_storage
from sm_profiler.storage.base import AccessDeniedError

try:
    from botocore.exceptions import BotoCoreError, ClientError

    from sm_profiler.storage.s3 import create_api_client, error_codes, reason_of, unknown_region
except (ImportError, SourceError) as missing:  # pragma: no cover - only imported for the name of a training job
    raise SourceError("opening a training job by its name needs boto3: pip install 'sm-profiler[aws]'") from missing

RUNNING = ("InProgress", "Stopping")
CUT_SHORT = ("Stopped", "Failed")
MAX_SHOWN = 160  # characters of a job's environment or log in a message
SHOWN_LINES = 2
BEGINNING_S = 240.0  # of a job's data, in which its framework is loaded and its first step begins
_CONFIG = "ProfilerConfig(framework_profile_params=FrameworkProfile())"

_NO_BUCKET = (
    "start the job again with an S3 path of a bucket that exists; what this one recorded is lost with its container"
)
_MAY_BE_MISSING = ("ValidationException", "ResourceNotFound", "ResourceNotFoundException")
_MISSING = re.compile(r"not f(ou|i)nd")
LOG_PAGES, LOG_LINES = 5, 20  # of a job's log, searched for our lines


@attrs.frozen
class Launched:
    """A described job's settings for profiling.

    Attributes:
        status: such as `InProgress` or `Failed`; "" if unknown.
        started: its training has started, or that is unknown.
        hook: SM_PROFILER_AUTO is on among its variables.
        agent: the configuration in its environment; None if it has none, or only a path of one.
        has_agent: the environment names a configuration.
        service: the configuration in its request; None if it has none.
        problem: why the configuration in its environment cannot be read, or "".
        failure: the service's reason of its failure, or "".
    """

    status: str
    started: bool
    hook: bool
    agent: Profile | None
    has_agent: bool
    service: Profile | None
    problem: str = ""
    failure: str = ""

    @classmethod
    def of(cls, job: Mapping[str, Any]) -> Launched:
        environment = job.get("Environment")
        variables = (
            {str(key): str(value) for key, value in environment.items()} if isinstance(environment, Mapping) else {}
        )
        text = config_from_environment(variables)
        agent, problem = None, ""
        if text is not None and text.lstrip().startswith("{"):
            try:
                agent = load_profile(text)
            except ConfigError as error:
                problem = str(error)
        config = job.get("ProfilerConfig")
        status = str(job.get("TrainingJobStatus") or "")
        return cls(
            status=status,
            started=not status or status == "Completed" or "TrainingStartTime" in job,
            hook=AUTO.usable(variables),
            agent=agent,
            has_agent=text is not None,
            service=load_profile(dict(config)) if isinstance(config, Mapping) and config else None,
            problem=problem,
            failure=str(job.get("FailureReason") or ""),
        )

    @property
    def running(self) -> bool:
        return self.status in RUNNING

    @property
    def by_agent(self) -> bool:
        """True if the agent, not the managed service, was to upload the profile."""
        return self.has_agent and (self.service is None or self.service.disabled)

    @property
    def may_store_profile(self) -> bool:
        """True if its configuration, as far as it is known, asks for a profile on S3 that is yet to come."""
        if not self.running:
            return False
        if not self.by_agent:
            return self.service is not None and not self.service.disabled
        if self.agent is None:  # the environment has the path of a configuration
            return self.hook and not self.problem
        return self.hook and not self.agent.disabled and self.s3_output_path is not None

    @property
    def _config(self) -> Profile | None:
        return self.agent if self.by_agent else self.service

    @property
    def rotate_close_s(self) -> float:
        """Seconds after which the hook closes a trace file, and it can be stored."""
        return self._config.rotate_close_seconds if self._config is not None else ROTATE_SECONDS.default

    @property
    def s3_output_path(self) -> str | None:
        path = self._config.s3_output_path if self._config is not None else None
        return path if path is not None and path.startswith("s3://") else None

    def why_no_profile(self, log: Sequence[str] = ()) -> tuple[str, str]:
        """Return why nothing is stored, and what to do.

        Args:
            log: lines of sm-profiler in the job's log.
        """
        if not self.started and (not self.running or self.may_store_profile):
            reason = f": {_short(self.failure)}" if self.failure else ""
            return f"its training has not started ({self.status}{reason})", ""
        if self.by_agent:
            why, advice = self._agent_problem()
        elif self.service is None:
            why = "the profiler was not switched on: neither its request nor its environment has a configuration"
            advice = "start the job with attach(…), or with profiler_config="
        elif self.service.disabled:
            why, advice = "the profiler was off: DisableProfiler is true", "start the job with a ProfilerConfig"
        else:
            why = "the managed service has stored nothing"
            advice = (
                "check that the job's role may write there; accounts that are new since 2026-07-30 have no managed "
                "profiling: attach(…, backend='agent') needs none"
            )
        if self.running and not why.startswith(("the profiler was", "uploads", "the hook")):
            return "nothing is stored yet", "the first files take about a minute; --follow waits for them"
        if log:
            return f"{why}; its log has: {' | '.join(_short(line) for line in log[:SHOWN_LINES])}", advice
        return why, advice

    def _agent_problem(self) -> tuple[str, str]:
        path = self.agent.s3_output_path if self.agent is not None else None
        if not self.hook:
            return f"the hook was off: {AUTO.name} is not on in its environment", f"set {AUTO.name}=1"
        if self.problem:
            return f"the hook was off: {_short(self.problem)}", "launch with agent_environment(…) or attach(…)"
        if self.agent is not None and self.agent.disabled:
            return "the profiler was off: DisableProfiler is true", "start the job with a ProfilerConfig"
        if self.agent is not None and path is None:
            return (
                f"uploads were off: the configuration in {CONFIG.name} has no S3OutputPath",
                "pass s3_output_path= to agent_environment(…)",
            )
        if path is not None and not path.startswith("s3://"):
            return (
                f"uploads were off: {_short(path)!r} in {CONFIG.name} is not an S3 URI",
                "set s3_output_path to s3://bucket/prefix",
            )
        return (
            "the agent has stored nothing",
            (
                "check that sm-profiler[aws] is installed in the container (in its image or requirements.txt), and that the "
                "job's role may write there"
            ),
        )

    def why_no_steps(self, recorded_s: float = math.inf) -> tuple[str, str]:
        """Return why a job with system metrics has no steps, and what to do, each a sentence.

        Args:
            recorded_s: how long the job has been recorded so far.
        """
        config = self._config
        if not self.hook:
            return (
                f"The hook was off: {AUTO.name} is not on in the job's environment.",
                f"Set {AUTO.name}=1 there (attach does), with {_CONFIG}.",
            )
        if config is not None and config.off:
            return (
                f"{AUTO.name}=1 is set, but the configuration asks for no framework metrics ({config.off}).",
                "Update the job: estimator.update_profiler(framework_profile_params=FrameworkProfile())."
                if self.running and not self.by_agent
                else f"Start the job with {_CONFIG}.",
            )
        if self.running and recorded_s < BEGINNING_S + self.rotate_close_s:
            return "No trace file is stored yet.", next_file(self.rotate_close_s)
        if self.status in CUT_SHORT:
            return (
                (
                    f"{AUTO.name}=1 is set and framework metrics are configured, but the job ended early, before any step "
                    f"was stored. {lost_in_open_file(self.rotate_close_s)}."
                ),
                (
                    f"Let the job run longer: a trace file is closed and stored after {duration(self.rotate_close_s)} "
                    f"(RotateFileCloseIntervalInSeconds). If it ran for longer: {self._no_known_step}"
                ),
            )
        return (
            f"{AUTO.name}=1 is set and framework metrics are configured, but no step is stored.",
            f"{self._no_known_step[0].upper()}{self._no_known_step[1:]}",
        )

    @property
    def _no_known_step(self) -> str:
        installed = "" if self.by_agent else "if sm-profiler is installed in the container, "  # whose monitor ran
        return (
            f"{installed}{NO_KNOWN_STEP} A hook that could not start names the reason in the job's log, in a line that begins "
            "with 'sm-profiler:'."
        )


NO_KNOWN_STEP = (
    "no process made a step that is known: a process that only imports a framework makes none, and other loops mark each step "
    "with get_hook().step()."
)


def next_file(seconds: float) -> str:
    """Return a sentence on the first trace file of a job that runs."""
    return (
        f"A trace file is closed and stored after {duration(seconds)} (RotateFileCloseIntervalInSeconds): 'sm-profiler report "
        "--follow' waits for it."
    )


def lost_in_open_file(seconds: float) -> str:
    """Return a sentence, without its period, about data that was in no closed file when a job was ended."""
    return f"Up to {duration(seconds)} of data was in a file that was still open, and is lost"


def _short(text: str) -> str:
    return cut(printable(" ".join(text.split())), MAX_SHOWN)


def describe(name: str, *, region: str | None = None, client: Any = None) -> dict[str, Any]:
    """Return the response of DescribeTrainingJob.

    Raises:
        SourceError: there is no such job, or the request fails.
    """
    try:
        client = client or create_api_client("sagemaker", region=region)
        answer: dict[str, Any] = client.describe_training_job(TrainingJobName=name)
    except ClientError as error:
        raise SourceError(refused(error, name, _region_of(client, region), named=region is not None)) from error
    except (BotoCoreError, ValueError, SourceError) as error:
        # A mistyped folder name gets here too, possibly on a machine without a network.
        cause = error.__cause__ if isinstance(error, SourceError) else error
        raise SourceError(
            f"{name} is not a folder, and its training job cannot be looked up: {reason_of(error, _region_of(client, region))}"
        ) from cause
    return answer


def refused(error: ClientError, name: str, region: str, *, named: bool = False) -> str:
    """Return why a training job could not be described, with what to do if there is none of that name.

    Args:
        named: the region was named in the call.
    """
    reason = reason_of(error, region)
    if error_codes(error)[0] not in _MAY_BE_MISSING or not _MISSING.search(reason) or unknown_region(region):
        return f"training job {name}: {reason}"
    other = "name that region" if named else f"set AWS_REGION, or write account:REGION/{name}"
    return (
        f"training job {name} does not exist in {region} ({reason.rstrip('.')}). To do: check the name; for a job of "
        f"another region, {other}"
    )


def _region_of(client: Any, region: str | None) -> str:
    return str(getattr(getattr(client, "meta", None), "region_name", None) or region or "")


def profiler_output(name: str, *, client: Any = None) -> str:
    """Return the s3:// URI of a training job's `profiler-output`.

    Raises:
        SourceError: there is no such job, or it is not profiled.
    """
    return output_of(describe(name, client=client), name)


def output_of(job: dict[str, Any], name: str) -> str:
    """Return the s3:// URI of the `profiler-output` of a described training job.

    Raises:
        SourceError: it has none.
    """
    return outputs_of(job, name)[0]


def outputs_of(job: dict[str, Any], name: str) -> list[str]:
    """Return the s3:// URIs where the `profiler-output` of a described training job may be, the likeliest first.

    They are the path of the configuration that applies (of the agent in the job's environment, or of the service), and the
    default, next to the job's model.

    Raises:
        SourceError: there is none.
    """
    configured = (job.get("ProfilerConfig") or {}).get("S3OutputPath")
    isolated = job.get("EnableNetworkIsolation") is True and AUTO.name in (job.get("Environment") or {})
    if not configured and isolated:
        return [_stored_output(job, name)]
    paths = [Launched.of(job).s3_output_path, configured, (job.get("OutputDataConfig") or {}).get("S3OutputPath")]
    found = dict.fromkeys(path.rstrip("/") for path in paths if path)
    if not found:
        raise SourceError(f"training job {name} has no profiler output")
    return [f"{path}/{job.get('TrainingJobName', name)}/{OUTPUT}" for path in found]


def outputs_below(places: Sequence[str]) -> list[str]:
    """Return the URIs to look for a profile at, of the places that `outputs_of` returns."""
    return [uri for place in places for uri in ((place,) if place.endswith(OUTPUT) else (place, f"{place}/{OUTPUT}"))]


def stored_profile(places: Sequence[str], *, client: Any = None) -> str | None:
    """Return the URI of the profile at one of the places; None if there is none.

    Args:
        places: of `outputs_of`.
        client: a boto3 client of S3; default: one created from the environment.

    Raises:
        AccessDeniedError: these credentials may not list the objects.
        SourceError: they cannot be listed, for example because there is no such bucket.
    """
    problem = None
    for uri in outputs_below(places):
        storage = open_storage(uri, client=client)
        try:
            if any(next(iter(storage.list(f"{part}/")), None) is not None for part in (SYSTEM, FRAMEWORK)):
                return uri
        except SourceError as error:  # the profile may be in another place
            problem = problem or error
    if problem is not None:
        raise problem
    return None


def missing_profile(
    job: dict[str, Any],
    name: str,
    looked: Sequence[str],
    *,
    region: str = "",
    client: Any = None,
    problem: SourceError | None = None,
) -> str:
    """Return the message for a described job without a profile: the reason, the searched places, and what to do."""
    launched = Launched.of(job)
    if problem is not None:
        text = f"the profile of training job {name} cannot be read: {problem}"
        if isinstance(problem, AccessDeniedError):
            return f"{text}. To do: use credentials that may read it."
        return f"{text}. To do: {_NO_BUCKET}." if error_codes(problem.__cause__)[0] == "NoSuchBucket" else text
    log = own_log_lines(name, region=region, client=client) if launched.started and not launched.running else []
    why, advice = launched.why_no_profile(log)
    text = f"training job {name} has no profile: {why}. Looked in {' and '.join(looked)}."
    return f"{text} To do: {advice}." if advice else text


def own_log_lines(name: str, *, region: str = "", client: Any = None) -> list[str]:
    """Return the first lines of sm-profiler in a training job's log; none if it cannot be read."""
    prefix = f"{name}/"
    request = {
        "logGroupName": "/aws/sagemaker/TrainingJobs",
        "logStreamNamePrefix": prefix,
        "filterPattern": '"sm-profiler:"',
    }
    found: list[str] = []
    try:
        client = client or create_api_client("logs", region=region or None)
        for _ in range(LOG_PAGES):
            page = client.filter_log_events(**request)
            # some servers that speak this API ignore the prefix
            events = [
                event for event in page.get("events", ()) if str(event.get("logStreamName", prefix)).startswith(prefix)
            ]
            found += [str(event.get("message", "")) for event in events]
            if len(found) >= LOG_LINES or not page.get("nextToken"):
                break
            request["nextToken"] = page["nextToken"]
    except (ClientError, BotoCoreError, ValueError, SourceError):  # these credentials may not read logs
        return found
    return [line for line in found if "sm-profiler:" in line][:LOG_LINES]


def _stored_output(job: dict[str, Any], name: str) -> str:
    """Return where the service stores the files of the agent in a job without a network."""
    checkpoints = (job.get("CheckpointConfig") or {}).get("S3Uri")
    if not checkpoints:
        results = (
            f"{(job.get('OutputDataConfig') or {}).get('S3OutputPath', '').rstrip('/')}/{name}/output/output.tar.gz"
        )
        raise SourceError(
            f"training job {name} has no network: its profile is the folder {ISOLATED_FOLDER} in {results}; download and "
            "unpack it, and name the folder"
        )
    return f"{checkpoints.rstrip('/')}/{ISOLATED_FOLDER}"
