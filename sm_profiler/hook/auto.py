"""The automatic entry: arms an import hook, so that the profiler comes with the framework and never before it.

The wheel's `sm_profiler_auto.pth` calls `arm()` in every Python process in which SM_PROFILER_AUTO is 1: trainings, but
also pip, torchrun and the trackers of multiprocessing.  So nothing is loaded here, and nothing is started.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType


def arm() -> None:
    """Let the hook come with torch, when and if that is imported."""
    when_loaded("torch", _install_pytorch)
    when_loaded("tensorflow", _note_tensorflow)


def when_loaded(name: str, action: Callable[[], None]) -> None:
    """Call `action` once module `name` is loaded: now, or right after its import."""
    if name in sys.modules:
        action()
        return
    finder = next((finder for finder in sys.meta_path if isinstance(finder, LoadFinder)), None)
    if finder is None:
        finder = LoadFinder()
        sys.meta_path.insert(0, finder)
    finder.waiting[name] = action


class LoadFinder:
    """Finds nothing itself; asks the others for a module that is waited for, and tells when that is loaded."""

    def __init__(self) -> None:
        self.waiting: dict[str, Callable[[], None]] = {}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's own spec, with a loader that tells us when it is done."""
        action = self.waiting.pop(name, None)
        if action is None:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(name, path, target) if find else None
            if spec is not None:
                _tell_when_loaded(spec, action)
                return spec
        self.waiting[name] = action  # not there (yet)
        return None


def _tell_when_loaded(spec: ModuleSpec, action: Callable[[], None]) -> None:
    loader: Any = spec.loader
    load = getattr(loader, "exec_module", None)
    if load is None:
        return

    def exec_module(module: ModuleType) -> None:
        loader.__dict__.pop("exec_module", None)
        load(module)
        action()

    # On this one loader object, for this one call: whoever looks at the module later finds everything as it always is.
    loader.exec_module = exec_module


def _install_pytorch() -> None:
    try:
        from sm_profiler.hook.entry import install  # noqa: PLC0415 - only now that torch is there

        install()
    except Exception as error:  # noqa: BLE001 - importing torch must work whatever is wrong with us
        sys.stderr.write(f"sm-profiler: the hook is off: {error}\n")


def _note_tensorflow() -> None:
    try:
        from sm_profiler.hook.entry import tensorflow_found  # noqa: PLC0415 - only now that it is there

        tensorflow_found()
    except Exception as error:  # noqa: BLE001 - importing TensorFlow must work whatever is wrong with us
        sys.stderr.write(f"sm-profiler: the hook is off: {error}\n")
