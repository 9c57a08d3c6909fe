"""A SageMaker endpoint on this machine, on moto, that really runs jobs and rule jobs.  Needs the extra `local`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sm_profiler.local.handle import LocalSageMaker

__all__ = ["LocalSageMaker"]


def __getattr__(name: str) -> object:
    if name == "LocalSageMaker":
        from sm_profiler.local.handle import LocalSageMaker  # noqa: PLC0415 - loads boto3

        return LocalSageMaker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
