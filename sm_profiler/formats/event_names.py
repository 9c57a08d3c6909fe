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
COMPILED_STEP = "sm_profiler/compiled_step"  # a whole step as one function: its forward and backward cannot be seen
QUEUED = "sm_profiler/queued"  # a call of a compiled function waits for those before it, which still run
RESULTS = "sm_profiler/results"  # waiting for results of compiled functions, which run while the script goes on; name: the call
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

GARBAGE_COLLECTION = "GC"  # `own` is true if the profiler caused the collection, else absent
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
# What each of these records is a class in `recorded`.
PROFILING = f"{OWN}profiling"  # time that only the profiler caused; name: what it did
SAVE = f"{OWN}save"  # a checkpoint or another file that the script writes; name: the function
LOG = f"{OWN}log"  # a call of a logger or experiment tracker; name: the function
COMPILE = f"{OWN}compile"  # one compilation or graph break of torch.compile, tf.function or jax.jit; name: the function
ALLOCATOR = f"{OWN}allocator"  # counters of the device's caching allocator
OPERATORS = f"{OWN}operators"  # operators of a training step
COMPILED_WORK = f"{OWN}compiled_work"  # what compiled functions spent their time on in a detailed window
CALLBACK = f"{OWN}callback"  # a method of a training callback; name: `Class.method`
INPUT = (
    f"{OWN}input"  # the input of a training loop; name: its kind (PyDataset, tf.data, DataLoader, arrays, generator)
)
EPOCH = f"{OWN}epoch"  # an epoch of the training, evaluation included
SYNCHRONIZATION = (
    f"{OWN}synchronization"  # backward passes that exchanged gradients, as DistributedDataParallel times them
)
EVAL_MODE = f"{OWN}eval_mode"  # a model is switched from training to eval() mode
TRAIN_MODE = f"{OWN}train_mode"  # the model is switched back
LOOP = f"{OWN}loop"  # the functions of the script that run the phases of a step; name: the innermost
LOADER_WORKERS = f"{OWN}loader_workers"  # the worker processes of a PyTorch loader; name: "start" or "stop"
OBJECTS = f"{OWN}objects"  # growth of Python objects and tensors by type
THREADS = f"{OWN}threads"  # threads of the process and its libraries
HANG = f"{OWN}hang"  # the steps stopped: the stacks of all threads
THREAD_END = f"{OWN}thread_end"  # a thread ended with an exception; name: the thread's
DATA_STAGES = f"{OWN}data_stages"  # the stages of a pipeline, as tf.data models them
SAMPLES = (
    f"{OWN}samples"  # Python stacks of the training thread and the loader's workers, summed up over a second or more
)
PROCESS = f"{OWN}process"  # metadata: the process that wrote the file
CLOCK = f"{OWN}clock"  # metadata: a merged timeline's correction of clocks
# Of our own phases, those with events of the training: what it saves, logs, compiles, calls or waits for.  The others are
# records of the profiler.
OF_TRAINING = frozenset({
    COMPILED_STEP, QUEUED, RESULTS, DEVICE_FORWARD, DEVICE_BACKWARD, DEVICE_OPTIMIZER, SAVE, LOG, COMPILE, CALLBACK, EPOCH,
})  # fmt: skip
CELL = "cell "  # start of the name of a notebook's cell, in place of a file's


def gpu_operators(device: object) -> str:
    """Return the phase of the operators that ran on one GPU."""
    return f"{GPU_OPERATORS}-dev:{device}"
