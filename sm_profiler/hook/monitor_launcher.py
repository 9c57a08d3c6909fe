"""The monitor and uploader beside the training, where no managed service does both."""

from __future__ import annotations

import atexit
import logging
import multiprocessing
import os
from typing import TYPE_CHECKING

from sm_profiler.config import Profile
from sm_profiler.container import PROFILER_CONFIG, read_resources, rooted
from sm_profiler.monitor.task import Task, destination_of, is_agent_job, job_name

if TYPE_CHECKING:
    from sm_profiler.monitor.start import Member

logger = logging.getLogger("sm_profiler")
_joined: list[Member] = []


def accompany(profile: Profile) -> None:
    """In a job of the agent backend: make this process one of the job's; the first one of a node starts the monitor."""
    if _joined or multiprocessing.parent_process() is not None:
        return  # a worker's parent is one of the job's already
    if not is_agent_job(profile, os.environ, rooted(PROFILER_CONFIG)):
        return
    from sm_profiler.monitor.start import join  # noqa: PLC0415 - jobs of the service never need it

    task = task_of(profile, job_name(os.environ))
    try:
        member = join(task)
    except Exception as error:  # noqa: BLE001 - whatever is wrong, the training and its hook go on
        logger.warning("sm-profiler: neither system metrics nor uploads: %s", error)
        return
    _joined.append(member)
    atexit.register(member.leave)  # runs after the hook's own, which is registered later


def task_of(profile: Profile, job: str, *, sample: bool = True) -> Task:
    """What this node's monitor is to do for a profile."""
    resources = read_resources()
    return Task(
        root=str(rooted(profile.local_path).absolute()),
        node=resources.node,
        interval_ms=profile.interval_ms if sample else 0,
        destination=destination_of(profile.s3_output_path, job) if profile.s3_output_path else "",
        kms_key_id=profile.kms_key_id or "",
        first=resources.is_first_node,
        interface=resources.interface,
    )
