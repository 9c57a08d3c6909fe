"""The id of a run that nothing names: the same in all processes that descend from its outermost Python process."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from sm_profiler.settings import RUN_ID


def run_id(environment: Mapping[str, str] = os.environ) -> str:
    """Return the id, after creating it for this process and its children if there is none."""
    found = RUN_ID.text(environment)
    if found:
        return found
    found = _launched(environment) or f"{time.strftime('local-%Y%m%d-%H%M%S')}-{os.getpid()}"
    if environment is os.environ:
        os.environ[RUN_ID.name] = found
    return found


def _launched(environment: Mapping[str, str]) -> str:
    """Return what the ranks of one launch have in common; "" for a process that is no rank."""
    for name in ("TORCHELASTIC_RUN_ID", "PMIX_NAMESPACE"):
        if environment.get(name, "none") not in {"none", ""}:
            return environment[name]
    if environment.get("MASTER_PORT") and environment.get("WORLD_SIZE", "1") != "1":
        return f"{environment.get('MASTER_ADDR', '')}-{environment['MASTER_PORT']}"
    return ""
