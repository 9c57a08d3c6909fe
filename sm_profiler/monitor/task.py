"""What the monitor's process is to do, and when a job wants one."""

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
    """What one node's monitor is to do.

    Attributes:
        root: the `profiler-output` folder on this machine, absolute.
        node: `algo-1`.
        interval_ms: milliseconds between samples; 0 for none.
        destination: the `s3://` URI of the `profiler-output` that files are uploaded to; "" for no uploads.
        kms_key_id: the key that uploads are encrypted with; "" for the bucket's own settings.
        first: whether this is the first of the job's hosts, which writes the end markers.
        interface: the network interface over which the hosts talk, or "".
    """

    root: str
    node: str
    interval_ms: int = 0
    destination: str = ""
    kms_key_id: str = ""
    first: bool = True
    interface: str = ""

    def to_json(self) -> str:
        """As text for a command line."""
        return json.dumps(attrs.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        """From such a text."""
        return cls(**json.loads(text))


def is_agent_job(profile: Profile, environment: Mapping[str, str], service_config: Path) -> bool:
    """Whether this job is profiled by us alone: switched on and configured by its environment.

    It has a place on S3; or none but a training job's name, which is a job without network, whose files the service stores.

    Args:
        profile: the job's profile.
        environment: the process's variables.
        service_config: where the managed service leaves its configuration; where that asks for the same place, the service
            samples and uploads already.
    """
    if environment.get(AUTO_VARIABLE) != "1" or profile.disabled or config_from_environment(environment) is None:
        return False
    if not (profile.s3_output_path or environment.get(JOB_NAME_VARIABLE)):
        return False
    try:
        service = load_profile(service_config.read_text("utf-8-sig"))
    except (OSError, UnicodeDecodeError, ConfigError):
        return True
    place, services = profile.s3_output_path, service.s3_output_path
    return service.disabled or (place is not None and (services or "").rstrip("/") != place.rstrip("/"))


def job_name(environment: Mapping[str, str]) -> str:
    """The training job's name as the service tells it; outside of it one made from the time."""
    named = environment.get(JOB_NAME_VARIABLE) or environment.get(TOOLKIT_JOB_NAME_VARIABLE)
    if named:
        return named
    try:
        told = json.loads(environment.get(TOOLKIT_VARIABLE, ""))["job_name"]
    except (ValueError, KeyError, TypeError):
        told = None
    return str(told) if told else time.strftime("local-%Y%m%d-%H%M%S")


def destination_of(s3_output_path: str, job: str) -> str:
    """Where a job's profile goes."""
    return f"{s3_output_path.rstrip('/')}/{job}/{OUTPUT}"
