"""Jobs whose scripts AWS's own training toolkit starts, as in its containers: `sagemaker-training` from PyPI.

The endpoint uses it on request: SM_PROFILER_LOCAL_TOOLKIT is the python of an environment that has the toolkit, and the
packages that the jobs import.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from sm_profiler.local.host import Host
from sm_profiler.local.overlay import PIP_VARIABLES

TOOLKIT = "SM_PROFILER_LOCAL_TOOLKIT"
BASE_FOLDER = "SAGEMAKER_BASE_DIR"  # the toolkit's own variable for the counterpart of /opt/ml


def toolkit_python(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the python whose toolkit starts the jobs; None if the endpoint starts them itself."""
    return environment.get(TOOLKIT) or None


def toolkit_command(python: Path, host: Host) -> list[str]:
    """Return the command in place of the container's `train`."""
    return [str(python), "-m", "sm_profiler.local.toolkit_start", str(host.port), *host.hosts]


def start_environment(host: Host, found: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the toolkit's own process, which sets those of the script.

    Args:
        host: the machine.
        found: the variables of any process of the job.
    """
    # pip runs inside: with the user's mirrors and proxies, but in the job's home folder
    homes = {"HOME", "XDG_CONFIG_HOME"}
    pip = {
        name: value
        for name, value in os.environ.items()
        if name.upper().startswith(PIP_VARIABLES) and name not in homes
    }
    own = {name: value for name, value in found.items() if name != "PYTHONPATH"}
    return {**pip, **own, BASE_FOLDER: str(host.ml), "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
