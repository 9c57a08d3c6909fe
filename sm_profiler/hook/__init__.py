"""The hook: counts steps in the training process, opens and closes profiling windows, and records events.

Importing this package loads nothing else; each public name is loaded when it is first used.
"""

from typing import TYPE_CHECKING

from sm_profiler._lazy import lazy_exports

__all__ = ["Hook", "ModeKeys", "get_hook"]

if TYPE_CHECKING:
    from sm_profiler.hook.entry import Hook, get_hook
    from sm_profiler.hook.modes import ModeKeys
else:
    __getattr__, __dir__ = lazy_exports(__name__, {"entry": ["Hook", "get_hook"], "modes": ["ModeKeys"]})
