"""Trace files that killed processes of the job left open, if no monitor runs on the node.

With the managed service, our code runs in the job's processes only.  So those that are left complete the file of a killed
one, and the service uploads it: a rank that starts again or ends, and at its end a process that has waited for others,
such as torchrun.
"""

from __future__ import annotations

import atexit
import os
import resource
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def complete_at_exit() -> None:
    """Complete such files when this process exits, if it has waited for children; imports nothing before that."""
    atexit.register(_complete_after_children, os.getpid())


def complete(root: Path, node: str) -> None:
    """Complete the files of this node's processes that have ended."""
    from sm_profiler.formats.trace_recovery import recover_traces  # every Python process loads this module

    recover_traces(root, node, stopped=False)


def _complete_after_children(pid: int) -> None:
    if os.getpid() != pid or not resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss:
        return
    try:
        from sm_profiler.config import load_profile
        from sm_profiler.container import read_resources
        from sm_profiler.hook.settings import find_config
        from sm_profiler.monitor.place import find

        source = find_config()
        root = find(load_profile(source.text)) if source is not None else None
        if root is not None:
            complete(root, read_resources().node)
    except Exception:  # noqa: S110 - fail open, and pip's output or torchrun's is no place for our errors
        pass
