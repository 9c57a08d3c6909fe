"""The monitor's task, as the command line of its process carries it, and when a job needs a monitor."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

import attrs

from sm_profiler.config import Profile, config_from_environment, load_profile
from sm_profiler.container import JOB_NAME_VARIABLE, TOOLKIT_JOB_NAME_VARIABLE, TOOLKIT_VARIABLE
from sm_profiler.errors import ConfigError
from sm_profiler.settings import AUTO, JOB, run_id

OUTPUT = "profiler-output"
NAMES = (JOB.name, JOB_NAME_VARIABLE, TOOLKIT_JOB_NAME_VARIABLE)


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
        job: the training job's name, the same for all its attempts; "" if nothing names it.
        config: file of the configuration, which may switch the sampling off while the job runs; "" for none.
        hook: whether the configuration has steps recorded.
    """

    root: str
    node: str
    interval_ms: int = 0
    destination: str = ""
    kms_key_id: str = ""
    first: bool = True
    interface: str = ""
    job: str = ""
    config: str = ""
    hook: bool = True

    def to_json(self) -> str:
        """Return the task as text for a command line."""
        return json.dumps(attrs.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        """Return the task in such a text."""
        return cls(**json.loads(text))


def is_agent_job(profile: Profile, environment: Mapping[str, str], service_config: Path) -> bool:
    """Return whether this job uses the agent backend: only its environment switches the profiler on and configures it.

    Args:
        profile: the job's profile.
        environment: the process's variables.
        service_config: the managed service's configuration file. If it has the same S3 path, the service already samples
            and uploads.
    """
    if not AUTO.usable(environment) or profile.disabled:
        return False
    if JOB.text(environment) and not profile.s3_output_path:
        return False  # `sm-profiler run` samples
    return is_own_job(profile, environment, service_config)


def is_own_job(profile: Profile, environment: Mapping[str, str], service_config: Path) -> bool:
    """Return whether the profile is that of the environment, and not the managed service's."""
    if config_from_environment(environment) is None:
        return False
    try:
        service = load_profile(service_config.read_text("utf-8-sig"))
    except (OSError, UnicodeDecodeError, ConfigError):
        return True
    own, services = profile.s3_output_path, service.s3_output_path
    return service.disabled or (own is not None and (services or "").rstrip("/") != own.rstrip("/"))


def job_name(environment: Mapping[str, str] = os.environ, otherwise: str = "") -> str:
    """Return the job's name: the same in all its processes and, if anything names the job, in all its attempts.

    Args:
        environment: the process's variables.
        otherwise: name of a job that nothing names; default: made from the time.
    """
    name = next((environment[key] for key in NAMES if environment.get(key)), "")
    if name:
        return name
    try:
        name = json.loads(environment.get(TOOLKIT_VARIABLE, ""))["job_name"]
    except (ValueError, KeyError, TypeError, RecursionError):
        name = ""
    return str(name or "") or _of_scheduler(environment) or otherwise or run_id(environment)


def _of_scheduler(environment: Mapping[str, str]) -> str:
    """Return the job's name in Slurm or Kubernetes; "" without them."""
    if environment.get("SLURM_JOB_ID"):
        return f"slurm-{environment['SLURM_JOB_ID']}"
    if environment.get("KUBERNETES_SERVICE_HOST"):  # a replica's pod is named after the job, its kind and its number
        pod = environment.get("HOSTNAME") or os.uname().nodename
        return re.sub(r"-(?:(?:master|worker|launcher|chief|node)-)?[0-9]{1,5}$", "", pod)
    return ""


def destination_of(s3_output_path: str, job: str) -> str:
    """Return the URI of a job's `profiler-output`."""
    return f"{s3_output_path.rstrip('/')}/{job}/{OUTPUT}"
