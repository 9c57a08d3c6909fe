"""Modes and phases, in the words that events carry."""

from enum import Enum


class ModeKeys(Enum):
    """What a step is for; the names are those of the old library."""

    TRAIN = 1
    EVAL = 2
    PREDICT = 3
    GLOBAL = 4

    __hash__ = object.__hash__  # Enum's own is a call of a Python function, several times a step


FORWARD = "Forward"
BACKWARD = "Backward(post-forward)"
OPTIMIZER = "Optimizer"
WAIT = "DataLoaderWait"
SUBMODULE = "Forward-SubModuleInternal"
LOADER_INIT = "DataLoaderIterInitialize"
LOADER_NEXT = "DataLoaderIter"
LOADER_WORKER = "DataLoaderWorker"
LOADER_FETCH = "DataLoaderWorkerFetch"
LOADER_PIN = "DataLoaderPinMemory"
GARBAGE = "GC"
STEP = {mode: f"Step:ModeKeys.{mode.name}" for mode in ModeKeys}
OWN_MEMORY = "sm_profiler/memory"
OWN_OVERHEAD = "sm_profiler/overhead"
CUDA_FORWARD = "sm_profiler/Forward-gpu"  # as the device ran them; of our own, so that nobody adds them to the host's
CUDA_BACKWARD = "sm_profiler/Backward-gpu"
CUDA_OPTIMIZER = "sm_profiler/Optimizer-gpu"
CUDA_MEMORY = "sm_profiler/cuda_memory"
