"""Files of an earlier job in the same folder: a warm pool runs one job after another in a container.

What an earlier attempt of the same job left is continued; what another job left is set aside, so that it is neither
uploaded nor read with this job's profile.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from sm_profiler.formats.layout import FRAMEWORK, IGNORED_FOLDER, SYSTEM
from sm_profiler.monitor.node_state import locked

OWNER = "job"  # file in the ignored folder with the job that the profile is of
EARLIER = "earlier"


def set_aside_other_job(root: Path, job: str) -> bool:
    """Move another job's profile out of the way; return whether there was one.

    Nodes with a shared folder may call this at once: the first moves, and the others find their own job's name.

    Args:
        root: the `profiler-output` folder.
        job: what distinguishes this job from others, the same for all its nodes and attempts.

    Raises:
        OSError: the folder cannot be written, or another node holds the lock for too long.
    """
    ignored = root / IGNORED_FOLDER
    with locked(ignored / OWNER) as fd:
        name = job.encode("utf-8", "replace")
        before = os.read(fd, os.fstat(fd).st_size)
        if before == name:
            return False
        moved = bool(before) and _move(root, ignored / EARLIER / time.strftime("%Y%m%d-%H%M%S"))
        os.ftruncate(fd, 0)
        os.pwrite(fd, name, 0)
        return moved


def _move(root: Path, place: Path) -> bool:
    found = [root / name for name in (SYSTEM, FRAMEWORK) if (root / name).exists()]
    for number in range(1000 if found else 0):
        free = place if number == 0 else place.with_name(f"{place.name}-{number}")
        with contextlib.suppress(FileExistsError):
            free.mkdir(parents=True)
            for folder in found:
                folder.rename(free / folder.name)
            return True
    return False
