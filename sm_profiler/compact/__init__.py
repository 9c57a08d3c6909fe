"""A profile as Parquet: a twentieth of the bytes of a long job, for every engine that reads it, and our reports.

compact(open_source("/path/to/profiler-output"), open_storage("s3://bucket/profiles"))
"""

from typing import TYPE_CHECKING

from sm_profiler._lazy import lazy_exports

__all__ = ["Compacted", "athena_ddl", "compact"]

if TYPE_CHECKING:
    from sm_profiler.compact.compacting import Compacted, athena_ddl, compact
else:
    __getattr__, __dir__ = lazy_exports(__name__, {"compacting": ["Compacted", "athena_ddl", "compact"]})
