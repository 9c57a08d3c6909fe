"""The classes of verdict."""

from __future__ import annotations

from enum import Enum


class Class(str, Enum):
    """The classes of verdict; docs/report.md says when each is given."""

    BALANCED = "BALANCED"
    INPUT_BOUND = "INPUT_BOUND"
    COMPUTE_BOUND = "COMPUTE_BOUND"
    HOST_BOUND = "HOST_BOUND"
    SYNC_BOUND = "SYNC_BOUND"
    GC_BOUND = "GC_BOUND"
    PERIODIC_STALL = "PERIODIC_STALL"
    STEP_OUTLIERS = "STEP_OUTLIERS"
    INITIALIZATION_BOUND = "INITIALIZATION_BOUND"
    EVALUATION_BOUND = "EVALUATION_BOUND"
    OPTIMIZER_BOUND = "OPTIMIZER_BOUND"
    MEMORY_GROWTH = "MEMORY_GROWTH"
    STRAGGLER = "STRAGGLER"
    COMMUNICATION_BOUND = "COMMUNICATION_BOUND"
    UNBALANCED_GPUS = "UNBALANCED_GPUS"
    INCONCLUSIVE = "INCONCLUSIVE"

    @property
    def is_healthy(self) -> bool:
        """Nothing that somebody would have to repair."""
        return self in (Class.BALANCED, Class.COMPUTE_BOUND)
