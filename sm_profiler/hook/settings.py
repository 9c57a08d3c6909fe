"""The profile of this job, and the rank of this process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import attrs

from sm_profiler.config import Profile, config_from_environment
from sm_profiler.config.profile import COLLECTORS
from sm_profiler.container import PROFILER_CONFIG, expanded, rooted
from sm_profiler.hook.guard import run_bounded
from sm_profiler.settings import CONFIG_PATH

S3_SECONDS = 15  # the import of the framework waits no longer for a configuration on S3
_MAX_DIGITS = 9  # of a rank


@attrs.frozen
class ConfigText:
    """JSON of a profile.

    Attributes:
        text: the JSON.
        path: its file, which is read again when it changes; None if it comes from the environment or S3.
        changed: mtime of the file in nanoseconds, 0 without a file.
    """

    text: str
    path: Path | None = None
    changed: int = 0


def find_config(environment: Mapping[str, str] = os.environ) -> ConfigText | None:
    """Return the profile of this job, or None.

    Raises:
        OSError, UnicodeDecodeError: the named file cannot be read.
        SourceError: the named s3:// address cannot be read.
        ProfilerError: a variable in its name is not set.
        TimeoutError: S3 did not answer in time.
    """
    named = config_from_environment(environment)
    if named:
        if named.lstrip().startswith("{"):
            return ConfigText(named)
        named = expanded(named, environment)
        return _from_s3(named) if named.startswith("s3://") else read_config(rooted(named, environment))
    path_named = CONFIG_PATH.text(environment)
    if path_named:
        return read_config(rooted(path_named, environment))
    path = rooted(PROFILER_CONFIG, environment)
    return read_config(path) if path.is_file() else None


def read_config(path: Path) -> ConfigText:
    """Read a profile's file."""
    changed = path.stat().st_mtime_ns
    return ConfigText(path.read_text("utf-8-sig"), path, changed)


def requested_collectors(profile: Profile) -> set[str]:
    """Return the collectors that the user requested by name.

    The SageMaker SDK's `FrameworkProfile` without individual configurations turns into all five collectors, in their
    default windows or in one common window.  Those that do not exist here are then not worth a message.
    """
    configs = list(profile.collectors.values())
    windows = {(config.start_step, config.num_steps, config.start_time, config.duration) for config in configs}
    if len(configs) == len(COLLECTORS) and (len(windows) == 1 or all(config.default for config in configs)):
        return set()
    return set(profile.collectors)


def rank_from(environment: Mapping[str, str] = os.environ) -> int | None:
    """Return this process's rank from the launcher's variables, or None."""
    for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SMDATAPARALLEL_RANK"):
        rank = _number(environment, name)
        if rank is not None:
            return rank
    # srun also sets its variables in a step of a single process, which may start ranks by itself
    return _number(environment, "SLURM_PROCID") if (_number(environment, "SLURM_STEP_NUM_TASKS") or 0) > 1 else None


def world_size_from(environment: Mapping[str, str] = os.environ) -> int | None:
    """Return the number of ranks of the job from the launcher's variables, or None."""
    for name in ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"):
        size = _number(environment, name)
        if size is not None:
            return size
    return None


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None


def _from_s3(uri: str) -> ConfigText:
    """Read a configuration from S3; an endpoint that does not answer must not hold up the training."""

    def read() -> str:
        from sm_profiler.storage import open_storage  # loads boto3

        prefix, _, key = uri.rpartition("/")
        return open_storage(prefix).read(key).decode()

    return ConfigText(run_bounded(read, S3_SECONDS, f"no answer from S3 for {S3_SECONDS} seconds: {uri}"))
