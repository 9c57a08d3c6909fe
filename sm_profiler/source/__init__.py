"""A job's profiler output as columns: listing, following, caching, and the account of what could not be read."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sm_profiler.source.opening import open_source
    from sm_profiler.source.profile import Batch, FileQuality, ProfileSource

# Loaded when first used: a process that parses needs neither Arrow nor storage.
_WHERE = {"Batch": "profile", "FileQuality": "profile", "ProfileSource": "profile", "open_source": "opening"}

__all__ = ["Batch", "FileQuality", "ProfileSource", "open_source"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(name)
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
