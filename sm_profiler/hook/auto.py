"""The automatic entry: arm an import hook that installs the profiler once the training framework is imported.

The wheel's `sm_profiler_auto.pth` calls `arm()` in every Python process in which SM_PROFILER_AUTO is set and not off:
trainings, but also pip, torchrun and the trackers of multiprocessing.  So arming imports nothing heavy and starts nothing,
and a value that is neither on nor off is reported by processes that import a framework only.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import resource
import sys
from functools import partial

from sm_profiler.hook.frameworks import Framework, frameworks
from sm_profiler.hook.patches import when_loaded
from sm_profiler.settings import AUTO, run_id

_NEEDED = ("attr", "attrs", "msgspec")
_off: list[str] = []  # why the hook is off


def arm() -> None:
    """Install the hook when a supported framework is imported, if one ever is."""
    run_id()
    for framework in frameworks():
        when_loaded(framework.module, partial(_loaded, framework))
    atexit.register(_complete_after_children, os.getpid())


def _loaded(framework: Framework) -> None:
    if _off:
        return
    try:
        if shadow := _shadow():
            _off.append(f"{shadow} has the name of a library that the hook needs")
        else:
            from sm_profiler.hook.entry import install, refuse  # too heavy for processes that never train

            problem = AUTO.problem()
            refuse(problem) if problem else install(framework)
    except (Exception, SystemExit) as error:  # the framework's import must succeed regardless
        _off.append(f"{type(error).__name__}: {error}")
    if _off:
        from sm_profiler.printable import say

        say(f"the hook is off: {_off[0]}")


def _shadow() -> str:
    """Return the file beside the script that an import of a library would run; "" if there is none.

    The script does not run it, or not yet.
    """
    script, ours = os.path.realpath(sys.path[0] or "."), os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    for name in (name for name in _NEEDED if name not in sys.modules and script != os.path.realpath(ours)):
        found = importlib.util.find_spec(name)
        place = (found.origin if found is not None else None) or ""
        folder = os.path.dirname(place.removesuffix(f"{os.sep}__init__.py"))
        if place and os.path.realpath(folder) == script:
            return place
    return ""


def _complete_after_children(pid: int) -> None:
    """Complete the files of killed processes if this process has waited for children; nothing is imported otherwise."""
    try:  # a script may have replaced any function
        if os.getpid() != pid or not resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss or AUTO.problem():
            return
        from sm_profiler.config import load_profile
        from sm_profiler.container import read_resources
        from sm_profiler.hook.process_end import complete
        from sm_profiler.hook.settings import find_config
        from sm_profiler.monitor.place import find

        source = find_config()
        root = find(load_profile(source.text)) if source is not None else None
        if root is not None:
            complete(root, read_resources().node)
    except Exception:  # noqa: S110 - fail open, and pip's output or torchrun's is no place for our errors
        pass
