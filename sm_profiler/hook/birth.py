"""Start of this process and of its container, and the shared file systems that it finds."""

from __future__ import annotations

import os
import time
from pathlib import Path

import attrs

from sm_profiler.container import INPUT_CONFIG
from sm_profiler.identity import identity
from sm_profiler.monitor.host import host_id, shared_mounts
from sm_profiler.monitor.node_state import PROC, start_time


@attrs.frozen
class Birth:
    """State of the process and the machine that the hook found.

    Attributes:
        process_us: start of this process, microseconds since the epoch; None if unknown.
        container_us: start of the container's first process; None outside a training container.
        shared_mounts: mount point → type of the file systems that other machines use, too.
        host: identity of the machine, the same in all of its jobs; "" if unknown.
        identity: user, account, job and so on, as far as the scheduler names them; see `sm_profiler.identity`.
    """

    process_us: int | None = None
    container_us: int | None = None
    shared_mounts: dict[str, str] = attrs.field(factory=dict)
    host: str = ""
    identity: dict[str, str] = attrs.field(factory=dict)


def birth(now_us: int, proc: Path = PROC, input_config: Path = Path(INPUT_CONFIG)) -> Birth:
    """Return the starts of process and container, as far as /proc shows them; never raises.

    Args:
        now_us: the time now on the clock of the profile.
        proc: the process file system.
        input_config: the folder that every training container has, unlike a machine on which only /opt/ml exists.
    """
    try:
        since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
        has_proc = (proc / "self").exists()

        def started(pid: int) -> int | None:
            ticks = start_time(pid, proc) if has_proc else ""
            return now_us - int(1e6 * (since_boot - int(ticks) / os.sysconf("SC_CLK_TCK"))) if ticks else None

        inside = input_config.is_dir()
        host = host_id(in_container=inside, proc=proc)
        return Birth(started(os.getpid()), started(1) if inside else None, shared_mounts(proc), host, identity())
    except Exception:  # fail open; the report does without
        return Birth()
