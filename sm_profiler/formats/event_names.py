"""Names in trace files: phases (the trace's process names), events and metadata records, each defined once.

The hook writes these names; rules, analysis and report compare against them. All of them are part of the file format.
"""

STEP = "Step:ModeKeys"  # start of every step's name
STEP_TRAIN = f"{STEP}.TRAIN"
STEP_EVAL = f"{STEP}.EVAL"
STEP_PREDICT = f"{STEP}.PREDICT"
STEP_GLOBAL = f"{STEP}.GLOBAL"

FORWARD = "Forward"
BACKWARD = "Backward(post-forward)"
OPTIMIZER = "Optimizer"
FORWARD_MODULE = "Forward-SubModuleInternal"
BACKWARD_MODULE = "Backward-SubModuleInternal"

DATALOADER_WAIT = "DataLoaderWait"
DATALOADER_INITIALIZE = "DataLoaderIterInitialize"
DATALOADER_ITER = "DataLoaderIter"
DATALOADER_WORKER = "DataLoaderWorker"
DATALOADER_FETCH = "DataLoaderWorkerFetch"
DATALOADER_PIN_MEMORY = "DataLoaderPinMemory"
TENSORFLOW_DATA_ITERATOR = "DataIterator"
TENSORFLOW_GET_NEXT = "dataset::GetNext"  # end of the names of events
TENSORFLOW_PREFETCH = "Prefetch"  # part of the names of events

GARBAGE_COLLECTION = "GC"
CPU_OPERATORS = "cpu_functions"
GPU_OPERATORS = "gpu_functions"  # start of the phase of each device
NCCL_MANAGER = "NcclManager"  # SMDDP

OWN = "sm_profiler/"  # start of all names that only sm-profiler records
MEMORY = f"{OWN}memory"
OVERHEAD = f"{OWN}overhead"
# phases timed by the device: named differently so that they are not added to the host's
DEVICE_FORWARD = f"{OWN}Forward-gpu"
DEVICE_BACKWARD = f"{OWN}Backward-gpu"
DEVICE_OPTIMIZER = f"{OWN}Optimizer-gpu"
DEVICE_MEMORY = f"{OWN}cuda_memory"
PROCESS = f"{OWN}process"  # metadata: the process that wrote the file
CLOCK = f"{OWN}clock"  # metadata: a merged timeline's correction of clocks


def gpu_operators(device: object) -> str:
    """Return the phase of the operators that ran on one GPU."""
    return f"{GPU_OPERATORS}-dev:{device}"
