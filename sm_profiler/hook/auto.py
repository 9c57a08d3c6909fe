"""The automatic entry: arm an import hook that installs the profiler once the training framework is imported.

The wheel's `sm_profiler_auto.pth` calls `arm()` in every Python process in which SM_PROFILER_AUTO is 1: trainings, but
also pip, torchrun and the trackers of multiprocessing.  So arming imports nothing heavy and starts nothing.
"""

from __future__ import annotations

import sys
from functools import partial

from sm_profiler.hook.frameworks import Framework, frameworks
from sm_profiler.hook.left_files import complete_at_exit
from sm_profiler.hook.patches import when_loaded
from sm_profiler.monitor.task import run_id


def arm() -> None:
    """Install the hook when a supported framework is imported, if one ever is."""
    run_id()
    for framework in frameworks():
        when_loaded(framework.module, partial(_loaded, framework))
    complete_at_exit()


def _loaded(framework: Framework) -> None:
    try:
        from sm_profiler.hook.entry import install  # too heavy for processes that never train

        install(framework)
    except Exception as error:  # the framework's import must succeed regardless
        sys.stderr.write(f"sm-profiler: the hook is off: {error}\n")
