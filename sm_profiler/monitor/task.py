"""The monitor's task, as the command line of its process carries it, and when a job needs a monitor."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

import attrs

from sm_profiler.config import Profile, config_from_environment, load_profile
from sm_profiler.container import AUTO_VARIABLE, JOB_NAME_VARIABLE, TOOLKIT_JOB_NAME_VARIABLE, TOOLKIT_VARIABLE
from sm_profiler.errors import ConfigError

OUTPUT = "profiler-output"


@attrs.frozen
class Task:
    """The task of one node's monitor.

    Attributes:
        root: the `profiler-output` folder on this machine, absolute.
        node: `algo-1`.
        interval_ms: milliseconds between samples; 0 for no sampling.
        destination: the `s3://` URI of the `profiler-output` to upload to; "" for no uploads.
        kms_key_id: the key that encrypts uploads; "" for the bucket's own settings.
        first: whether this is the job's first node, which writes the end markers.
        interface: the network interface that connects the nodes, or "".
        job: the training job's name, the same for all its attempts; "" outside of the service.
    """

    root: str
    node: str
    interval_ms: int = 0
    destination: str = ""
    kms_key_id: str = ""
    first: bool = True
    interface: str = ""
    job: str = ""

    def to_json(self) -> str:
        """Return the task as text for a command line."""
        return json.dumps(attrs.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        """Return the task in such a text."""
        return cls(**json.loads(text))


def is_agent_job(profile: Profile, environment: Mapping[str, str], service_config: Path) -> bool:
    """Return whether this job uses the agent backend: only its environment switches the profiler on and configures it.

    Such a job has an S3 path. The exception is a training job without network access, whose files the service stores.

    Args:
        profile: the job's profile.
        environment: the process's variables.
        service_config: the managed service's configuration file. If it has the same S3 path, the service already samples
            and uploads.
    """
    if environment.get(AUTO_VARIABLE) != "1" or profile.disabled or config_from_environment(environment) is None:
        return False
    if not (profile.s3_output_path or environment.get(JOB_NAME_VARIABLE)):
        return False
    try:
        service = load_profile(service_config.read_text("utf-8-sig"))
    except (OSError, UnicodeDecodeError, ConfigError):
        return True
    own, services = profile.s3_output_path, service.s3_output_path
    return service.disabled or (own is not None and (services or "").rstrip("/") != own.rstrip("/"))


def job_name(environment: Mapping[str, str]) -> str:
    """Return the training job's name; outside of the service, a name made from the current time."""
    name = environment.get(JOB_NAME_VARIABLE) or environment.get(TOOLKIT_JOB_NAME_VARIABLE)
    if name:
        return name
    try:
        name = json.loads(environment.get(TOOLKIT_VARIABLE, ""))["job_name"]
    except (ValueError, KeyError, TypeError, RecursionError):
        name = None
    return str(name) if name else time.strftime("local-%Y%m%d-%H%M%S")


def destination_of(s3_output_path: str, job: str) -> str:
    """Return the URI of a job's `profiler-output`."""
    return f"{s3_output_path.rstrip('/')}/{job}/{OUTPUT}"
