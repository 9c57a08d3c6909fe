"""A SageMaker endpoint on this machine, built on moto, that really runs jobs and rule jobs; needs the extra `local`."""

from typing import TYPE_CHECKING

from sm_profiler._lazy import lazy_exports

__all__ = ["LocalSageMaker"]

if TYPE_CHECKING:
    from sm_profiler.local.endpoint import LocalSageMaker
else:
    __getattr__, __dir__ = lazy_exports(__name__, {"endpoint": ["LocalSageMaker"]})
