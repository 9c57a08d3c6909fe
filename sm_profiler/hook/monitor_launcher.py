"""Start of the monitor and uploader beside the training, for jobs without a managed service that does both."""

from __future__ import annotations

import atexit
import multiprocessing
import os
from typing import TYPE_CHECKING

from sm_profiler.config import Profile
from sm_profiler.container import (
    DEFAULT_PROFILER_OUTPUT,
    JOB_NAME_VARIABLE,
    PROFILER_CONFIG,
    RESOURCE_CONFIG,
    read_resources,
    rooted,
)
from sm_profiler.hook.guard import pass_on
from sm_profiler.monitor.task import Task, destination_of, is_agent_job, job_name
from sm_profiler.printable import logger_for

if TYPE_CHECKING:
    from pathlib import Path

    from sm_profiler.monitor.start import Registration

logger = logger_for("sm_profiler")
_joined: list[Registration] = []


def accompany(profile: Profile, config: Path | None = None) -> None:
    """Register this process with the monitor of its node, and start the monitor if necessary, in a job of the agent backend.

    Args:
        profile: the profile.
        config: its file, which may switch the sampling off while the job runs.
    """
    if _joined or multiprocessing.parent_process() is not None:
        return  # the parent of a worker is registered already
    if not is_agent_job(profile, os.environ, rooted(PROFILER_CONFIG)):
        return
    from sm_profiler.monitor.start import join  # not needed in jobs of the service

    task = task_of(profile, job_name(os.environ), config=config)
    try:
        registration = join(task)
    except Exception as error:  # the training and its hook continue regardless
        pass_on(error)
        logger.warning("sm-profiler: no system metrics and no uploads: %s", error)
        return
    _joined.append(registration)
    unnamed = task.root == str(rooted(DEFAULT_PROFILER_OUTPUT).absolute())  # no news if it was configured
    if not task.destination and unnamed and registration.monitor is not None and not rooted(RESOURCE_CONFIG).exists():
        logger.warning("sm-profiler: the configuration has no S3OutputPath: the profile stays in %s", task.root)
    atexit.register(registration.leave)  # runs after the hook's exit function, which is registered later


def task_of(profile: Profile, job: str, *, sample: bool = True, config: Path | None = None) -> Task:
    """Return the task of this node's monitor for a profile."""
    resources = read_resources()
    return Task(
        root=str(rooted(profile.local_path).absolute()),
        node=resources.node,
        interval_ms=profile.interval_ms if sample else 0,
        destination=destination_of(profile.s3_output_path, job) if profile.s3_output_path else "",
        kms_key_id=profile.kms_key_id or "",
        first=resources.is_first_node,
        interface=resources.interface,
        job=os.environ.get(JOB_NAME_VARIABLE, ""),
        config=str(config.absolute()) if config is not None else "",
    )
