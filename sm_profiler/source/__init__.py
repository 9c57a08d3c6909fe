"""A job's profiler output as columns: listing, following, caching, and the account of what could not be read."""

from sm_profiler.source.opening import open_source
from sm_profiler.source.profile import Batch, FileQuality, ProfileSource

__all__ = ["Batch", "FileQuality", "ProfileSource", "open_source"]
