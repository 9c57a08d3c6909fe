"""Classes of verdict."""

from __future__ import annotations

import re
from enum import Enum

MOSTLY_IDLE = "GPU mostly idle"  # label of BALANCED if no cause is found, and the GPU is no sign of health
NO_CAUSE = "No cause found"  # the same if some of the time is neither useful nor explained
NOT_BEGUN = "The training did not begin"  # label of HANG before the first step
BEFORE_FAILURE = "No bottleneck before it failed"  # label of BALANCED if the job failed
SHARED = "Machine shared with other processes"  # label of BALANCED if they hide any cause


class Class(str, Enum):
    """Classes of verdict, each with its name on the page; docs/report.md defines them."""

    label: str

    BALANCED = "BALANCED", "Healthy"
    INPUT_BOUND = "INPUT_BOUND", "Waiting for data"
    COMPUTE_BOUND = "COMPUTE_BOUND", "Healthy: limited by the accelerator"
    HOST_BOUND = "HOST_BOUND", "Limited by the host"
    SYNC_BOUND = "SYNC_BOUND", "Time lost outside the model"
    USER_PHASE = "USER_PHASE", "Slow custom phase"
    GC_BOUND = "GC_BOUND", "Paused by garbage collection"
    PERIODIC_STALL = "PERIODIC_STALL", "Stalls at regular intervals"
    STEP_OUTLIERS = "STEP_OUTLIERS", "A few very long steps"
    CHECKPOINTING = "CHECKPOINTING", "Waiting for files to be saved"
    LOGGING = "LOGGING", "Slow logging"
    SLOW_CALLBACK = "SLOW_CALLBACK", "Waiting for a callback"
    HANG = "HANG", "The training stopped"
    DEAD_RANK = "DEAD_RANK", "A rank died"
    UNEQUAL_STEPS = "UNEQUAL_STEPS", "Ranks with different numbers of steps"
    RECOMPILATION = "RECOMPILATION", "Compiling again and again"
    OVERSUBSCRIBED = "OVERSUBSCRIBED", "More threads than cores"
    ALLOCATOR = "ALLOCATOR", "Fragmented GPU memory"
    INITIALIZATION_BOUND = "INITIALIZATION_BOUND", "Slow to start"
    IDLE = "IDLE", "Idle"
    FAIL_SLOW = "FAIL_SLOW", "Slowed down during the run"
    SWAPPING = "SWAPPING", "Swapping"
    SLOW_STORAGE = "SLOW_STORAGE", "Slow shared file system"
    GPU_THROTTLED = "GPU_THROTTLED", "GPU below its clock"
    BATCH_TOO_SMALL = "BATCH_TOO_SMALL", "Batch too small for the GPU"
    EVALUATION_BOUND = "EVALUATION_BOUND", "Waiting for evaluation"
    OPTIMIZER_BOUND = "OPTIMIZER_BOUND", "Slow optimizer"
    MEMORY_GROWTH = "MEMORY_GROWTH", "Memory keeps growing"
    STRAGGLER = "STRAGGLER", "One rank delays the others"
    MOVING_STRAGGLER = "MOVING_STRAGGLER", "Alternating stragglers"
    SEQUENCE_IMBALANCE = "SEQUENCE_IMBALANCE", "Sequences divided unevenly"
    PADDING_WASTE = "PADDING_WASTE", "Computing on padding"
    DOUBLE_PRECISION = "DOUBLE_PRECISION", "Computing in double precision"
    STAGE_IMBALANCE = "STAGE_IMBALANCE", "Unequal pipeline stages"
    GC_OUT_OF_PHASE = "GC_OUT_OF_PHASE", "Ranks collect garbage at different steps"
    COMMUNICATION_BOUND = "COMMUNICATION_BOUND", "Waiting for communication"
    UNBALANCED_GPUS = "UNBALANCED_GPUS", "GPUs used unevenly"
    TRANSFER_BOUND = "TRANSFER_BOUND", "Waiting for copies to and from the device"
    TENSOR_CORES_UNUSED = "TENSOR_CORES_UNUSED", "Tensor cores unused"
    MEMORY_BANDWIDTH_BOUND = "MEMORY_BANDWIDTH_BOUND", "Limited by the GPU's memory bandwidth"
    DOMINANT_KERNEL = "DOMINANT_KERNEL", "One slow kernel"
    INCONCLUSIVE = "INCONCLUSIVE", "Not enough data to judge"

    def __new__(cls, code: str, label: str) -> Class:  # Self needs Python 3.11
        """Return the member for a code, with its label."""
        member = str.__new__(cls, code)
        member._value_ = code
        member.label = label
        return member

    @classmethod
    def _missing_(cls, value: object) -> Class | None:
        """Return a class of another version, so that its reports can be read; its name is its code."""
        if not isinstance(value, str) or not re.fullmatch("[A-Z][A-Z_]{2,39}", value):
            return None
        member = str.__new__(cls, value)
        member._name_ = member._value_ = member.label = value
        return member

    @property
    def is_healthy(self) -> bool:
        """True if there is nothing to repair."""
        return self in (Class.BALANCED, Class.COMPUTE_BOUND)

    @property
    def costs_time(self) -> bool:
        """False if its repair saves none: health, too little data, and growing memory, which only kills the job in the end."""
        return not self.is_healthy and self not in (Class.MEMORY_GROWTH, Class.INCONCLUSIVE)


def class_named(code: str) -> Class:
    """Return the class with a code."""
    return Class(code)  # type: ignore[call-arg] # mypy takes the members' arguments for those of the call
