"""In the training process: what a step is, when which collector is on, and what is written down.

Importing this loads nothing; each public name is loaded when it is first used.
"""

from typing import Any

_LAZY = {"Hook": "sm_profiler.hook.core", "get_hook": "sm_profiler.hook.entry", "ModeKeys": "sm_profiler.hook.modes"}

__all__ = ["Hook", "ModeKeys", "get_hook"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    from importlib import import_module  # noqa: PLC0415 - nothing is loaded before it is asked for

    value = globals()[name] = getattr(import_module(_LAZY[name]), name)
    return value
