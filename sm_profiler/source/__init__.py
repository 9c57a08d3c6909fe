"""A job's profiler output as columns: listing, following, caching, and an account of what could not be read."""

from typing import TYPE_CHECKING

from sm_profiler._lazy import lazy_exports

__all__ = ["Batch", "FileQuality", "ProfileSource", "open_source"]

if TYPE_CHECKING:
    from sm_profiler.source.opening import open_source
    from sm_profiler.source.profile import Batch, FileQuality, ProfileSource
else:  # a parser process needs neither Arrow nor storage
    __getattr__, __dir__ = lazy_exports(
        __name__, {"opening": ["open_source"], "profile": ["Batch", "FileQuality", "ProfileSource"]}
    )
