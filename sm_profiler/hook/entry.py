"""Installs the one hook of this process, if the job's configuration asks for it."""

from __future__ import annotations

import logging
import sys
from typing import Any

from sm_profiler.config import load_profile
from sm_profiler.errors import ProfilerError
from sm_profiler.hook import settings
from sm_profiler.hook.core import Hook
from sm_profiler.hook.monitor_launcher import accompany
from sm_profiler.hook.pytorch.adapter import PyTorchAdapter

logger = logging.getLogger("sm_profiler")
_installed: dict[str, Any] = {}


def get_hook(*, create: bool = True) -> Hook | None:
    """This process's hook; without one, one is made from the configuration.  None where profiling is off."""
    hook: Hook | None = _installed.get("hook")
    return hook if hook is not None or not create else install()


def install() -> Hook | None:
    """Read the configuration and put the hook into PyTorch; None where it is off.  Never raises."""
    if "hook" in _installed:
        return get_hook(create=False)
    try:
        source = settings.find_config()
        if source is None:
            return None
        profile = load_profile(source.text)
        for problem in profile.problems:
            logger.warning("sm-profiler: %s", problem)
        accompany(profile)
        if not profile.hook_on:
            if not profile.disabled and profile.parameters:
                logger.warning("sm-profiler: the hook is off: %s", profile.off)
            return None
        import torch  # noqa: PLC0415 - the adapter's own

        hook = Hook(profile, source)
        adapter = PyTorchAdapter(hook, torch)
        missing = sorted(set(profile.collectors) - adapter.provides)
        if missing:
            logger.warning("sm-profiler: asked for, but not available in this version: %s", ", ".join(missing))
        try:
            adapter.install()
        except BaseException:
            adapter.remove()
            raise
    except (ProfilerError, OSError, ValueError) as error:
        logger.warning("sm-profiler: the hook is off: %s", error)
        return None
    except Exception as error:  # noqa: BLE001 - whatever is wrong, the training goes on
        logger.warning("sm-profiler: the hook is off: %s: %s", type(error).__name__, error)
        return None
    _installed.update(hook=hook, adapter=adapter)
    return hook


def uninstall() -> None:
    """Close the hook and leave torch as it was."""
    hook, adapter = _installed.pop("hook", None), _installed.pop("adapter", None)
    if hook is not None:
        hook.end()
    if adapter is not None:
        adapter.remove()


def tensorflow_found() -> None:
    """A TensorFlow process says once what it does not get."""
    if settings.find_config() is not None and "torch" not in sys.modules:
        logger.warning("sm-profiler: TensorFlow is not profiled in this version; system metrics are")
