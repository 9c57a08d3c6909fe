"""Start of a profile on this machine, for the command `run` and for `sm_profiler.start`: its folder, configuration, monitor."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from sm_profiler.errors import ProfilerError
from sm_profiler.printable import printable

if TYPE_CHECKING:
    from sm_profiler.config import Profile
    from sm_profiler.monitor.start import Registration

INTERVAL_MS = 500


class FolderTakenError(ProfilerError):
    """A folder for a new profile has files."""


def start_monitor(profile: Profile, job: str, *, sample: bool, config: Path | None = None) -> Registration | None:
    """Start this node's monitor, which also uploads if the profile has an S3 path, in a process of its own."""
    from sm_profiler.hook.monitor_launcher import task_of
    from sm_profiler.monitor.start import join

    task = task_of(profile, job, sample=sample, config=config)
    if profile.disabled or not (task.interval_ms or task.destination):
        return None
    try:
        registration = join(task)
    except ProfilerError as error:
        print(f"sm-profiler: system metrics are off: {error}", file=sys.stderr)
        return None
    if task.destination:
        print(f"sm-profiler: uploading to {task.destination}", file=sys.stderr, flush=True)
    return registration


def default_config(folder: Path) -> Path:
    """Write the configuration of a run without `--config` into the folder of its profile, and return its path.

    Operators and data loader in their default windows.  cProfile is left out: it slows the steps and the imports that it
    measures, and the sampler names the same lines.  Horovod and SMDDP are left out: the hook would warn about libraries
    that the user never mentioned.
    """
    from sm_profiler.container import escaped
    from sm_profiler.debugger import FrameworkProfile, ProfilerConfig

    config = ProfilerConfig(
        system_monitor_interval_millis=INTERVAL_MS,
        framework_profile_params=FrameworkProfile(local_path=escaped(str(folder))),
    )
    request = config._to_request_dict()  # the SDK's name for its wire form
    for optional in ("PythonProfilingConfig", "HorovodProfilingConfig", "SMDataParallelProfilingConfig"):
        del request["ProfilingParameters"][optional]
    path = folder / "profilerconfig.json"
    path.write_text(json.dumps(request, indent=1))
    return path


def profile_folder(name: str, out: Path | None = None) -> Path:
    """Create and return the folder of a profile: `out`, or else `./sm-profiler/<name>-<time>/`.

    Raises:
        FolderTakenError: `out` has files: two profiles in one folder would be judged as one job.
    """
    if out is None:
        return new_folder(Path("sm-profiler").absolute(), f"{name}-{time.strftime('%Y%m%d-%H%M%S')}")
    folder = out.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FolderTakenError(f"{printable(out)} is not empty; a profile takes a new folder")
    return folder


def new_folder(parent: Path, name: str) -> Path:
    """Create and return a folder that did not exist, numbered if the name is taken."""
    for number in itertools.count(1):
        folder = parent / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
    raise AssertionError


def quoted(path: Path) -> str:
    """Return a path as an argument for a shell, in one line without control characters."""
    text = str(path)
    if text.isprintable():
        return shlex.quote(text)
    plain = "".join(
        one if one.isprintable() and one not in "'\\" else "".join(f"\\x{byte:02x}" for byte in os.fsencode(one))
        for one in text
    )
    return f"$'{plain}'"


def shown(path: Path) -> Path:
    """Return a path relative to the current folder if it is below it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
