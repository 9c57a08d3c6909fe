"""Policy: every threshold of the verdict, each with its reason.  Nothing else in this room compares against a number."""

from __future__ import annotations

import attrs

from sm_profiler.report.classes import Class


@attrs.frozen
class Threshold:
    """A limit and why it stands where it stands."""

    value: float
    reason: str


T = Threshold

# How much data a judgement needs.
MIN_STEPS = T(
    20, "below 20 training steps the first, slow ones (allocation, worker start, autotuning) dominate every mean"
)
STEADY_STEPS = T(100, "from 100 steps on the mean of a share is known to a few percent: high confidence needs that")
MIN_GPU_SAMPLES = T(20, "20 samples are 10 s at the default 500 ms: less is one moment of the job")

CLEARLY = T(1.5, "times the threshold: a value this far beyond it is no matter of measurement error")

# Input.
INPUT_WAIT = T(
    0.15, "a loader that is just fast enough shows a few percent; above 15 % of the loop more workers pay off visibly"
)
SAME_SHARE = T(0.02, "two points: shares of the loop and of a step that close are told as one")
INPUT_SYSTEM = T(0.5, "CPUBottleneck's and IOBottleneck's own threshold: half of all moments")
INPUT_WAIT_MS = T(1.5, "collating a small batch in the training process takes less than this, however small the step")
GPU_IDLE = T(0.35, "a GPU below 10 % in over a third of the samples waits for something most of each step")
WORKERS = T(8, "workers to try first: more start slowly and take memory, and few loops need them")
LOADER_IDLE = T(
    0.5,
    "of the cores that loading would keep busy if it computed: below it loading mostly waits, for storage or a network",
)
IDLE_WORKERS = T(32, "workers that mostly wait take no core, but each takes a process's memory")
LOADER_HOT_CPU = T(0.75, "mean CPU use above 75 % of all cores while the loop waits: preprocessing has no cores left")
IO_WAIT = T(
    20.0, "cores stand in I/O wait for a fifth of the time: the disk, not the CPU, is what the loader waits for"
)
NETWORK_BUSY = T(50e6, "50 MB/s received throughout the loop means that data is streamed while training")

# Inside the loop.
OUTSIDE = T(
    0.20,
    "logging, metrics and the loss function together stay below a tenth in a healthy loop; twice that is a finding",
)
OUTSIDE_MS = T(
    0.5, "per step; below half a millisecond it is the price of a Python loop, which HOST_BOUND speaks about"
)
TINY_STEP_MS = T(
    3.0, "launching a few hundred operators from Python costs 1 to 3 ms: a shorter step is mostly overhead"
)
GC_SHARE = T(
    0.06, "generation 0 and 1 collections cost under 1 %; several percent need full collections over many objects"
)
EVALUATION = T(0.35, "evaluating for a third of the loop is more than most schedules intend; a fifth is usual")
OPTIMIZER = T(0.40, "fused and foreach optimizers take 2 to 15 % of a step; 40 % is more than the backward pass")
OPTIMIZER_TINY = T(0.60, "in a step of a millisecond or two the optimizer's launches are a usual third")
GPU_IDLE_IN_PHASES = T(
    0.25, "share of samples below 10 %, though the loop is inside its phases: launches do not keep up"
)
PHASES_GPU_LOW = T(
    50.0,
    "percent; the loop computes all the time, yet the GPU is idle for more than half of it: the host cannot feed it",
)

GPU_NEVER = T(0.5, "percent mean use: not even a warm-up kernel ran")
GPU_MEMORY_ROOM = T(60.0, "percent of GPU memory in use; below it a batch half as large again fits")

# Single long steps.
LONG_STEP = T(2.0, "times the median: jitter of the machine stays well below it")
LONG_STEP_MADS = T(
    8.0, "median absolute deviations above the median: for noisy loops, where twice the median is normal"
)
LONG_STEP_MS = T(5.0, "longer than the median by this much: shorter hiccups come from the operating system")
STALL_COST = T(0.05, "share of the loop that steps with a period cost together; below 5 % repairing them gains little")
OUTLIER_COST = T(0.08, "as above for steps without a period: the machine's own noise costs some percent, too")
JITTER = T(0.2, "of a usual long step's excess; what is shorter is jitter beside it")
SAME_PART = T(
    0.7,
    "of the time lost lies in steps that are long in the same part; the noise of a busy machine hits parts at random",
)
OUTLIER_LENGTH = T(3.0, "times the median; a busy machine makes steps twice as long, hardly three times")
WARM_UP_STEPS = T(3, "the first steps allocate, compile and start workers; they are long in every job")
RARE = T(0.10, "of the steps; what happens more often is how the loop works")
PERIOD_REPEATS = T(3, "a period needs to be seen three times")
PERIOD_MATCH = T(0.8, "of the places of a period must be long: one may be missed, chance does not reach it")
PERIOD_COST = T(0.6, "of the time lost in long steps lies on the period; the rest is the noise of a busy machine")
MANY_LONG = T(0.5, "when half of all steps is long there is no usual step that they could be held against")

# Before the loop.
INIT_ALLOWANCE_S = T(
    5.0, "starting Python and importing torch takes 2 to 5 s: nobody can save that, so nobody is told about it"
)
INIT_ALLOWANCE_GPU_S = T(12.0, "with CUDA's start and its libraries it is up to 12 s")
INIT_LOADING_S = T(
    60.0,
    "importing the framework takes no longer even on a slow, busy machine; a hook made later says nothing about it",
)
INIT_DEVICE_S = T(6.0, "CUDA context, NCCL and cuDNN start within some seconds")
INIT_MODEL_S = T(2.0, "behind the import: building a model and opening a dataset, where nothing is wrong")
INITIALIZATION = T(0.25, "a quarter of the paid time before the first step")

INIT_WEIGHT = T(
    0.5, "a start is paid once, what the loop loses is paid again with every epoch: it leads unless half as large"
)

# Memory.
GROWTH_SHARE = T(0.15, "of the memory in use at the loop's start, gained within the loop after warming up")
GROWTH_BYTES = T(
    50e6, "caches, allocator arenas and lazily imported modules grow by some tens of megabytes in a healthy job"
)
GROWTH_SAMPLES = T(4, "a line and its error need a handful of points; the size of the growth guards against chance")
GROWTH_SIGMAS = T(5.0, "standard errors of the slope: samples of memory are correlated, so 2 would fire on noise")
GROWTH_LATE = T(0.4, "the second half must still grow at 40 % of the first half's rate, else it is warming up")
GPU_GROWTH = T(15.0, "percent points of GPU memory gained over the loop, without falling back")
HOST_GROWTH = T(5.0, "percent points of the node's memory gained over the loop; page cache is not counted as used")
GROWTH_WEIGHT = T(
    0.15, "memory growth costs no time until the job dies; this ranks it above small losses, below large ones"
)
FATAL_S = T(900.0, "memory that is full within a quarter of an hour ends the job: no faster step matters before that")

# Several processes, several GPUs.
STRAGGLER = T(
    0.12, "the slowest rank's own work exceeds the others' median by this share of a step: over a tenth is no jitter"
)
IN_STEP = T(0.15, "turns of ranks that wait for each other are equally long; independent ones differ")
COMMUNICATION = T(
    0.40, "collectives overlap the backward pass, up to a third of the step is usual; above 40 % they are exposed"
)
UNBALANCED = T(30.0, "percent points between the mean use of the busiest and the laziest GPU of a node")
COMPUTE = T(80.0, "percent mean GPU use inside the loop: the accelerator is what limits, as it should be")

# Findings, and the mean GPU use above which they are none: what the host does while the GPU has work costs nothing, and where
# the host waits for the GPU says nothing.  An optimizer whose time on the GPU was measured is a finding all the same.
HIDDEN_ABOVE = {
    Class.INPUT_BOUND: T(85.0, "percent; the GPU idles less than the share of waits that is a finding (INPUT_WAIT)"),
    Class.SYNC_BOUND: T(
        80.0, "percent; the GPU idles less than the share outside the phases that is a finding (OUTSIDE)"
    ),
    Class.OPTIMIZER_BOUND: T(80.0, "percent; the host may stand in the optimizer because the GPU still has work"),
}

# Money.
HALF_EMPTY = T(
    45.0,
    "percent; the next smaller instance has about half of everything, so all use must stay below half with a margin",
)

# Which finding leads.  Findings of an earlier tier explain those of a later one, so they come first however much time
# both name; within a tier the larger lost share leads.
PRECEDENCE: tuple[tuple[Class, ...], ...] = (
    (Class.GC_BOUND,),  # collections show up as waits and as time outside the phases: the cause before the symptom
    (Class.STRAGGLER,),  # the others' long backward passes are waits for it
    (
        Class.INPUT_BOUND, Class.SYNC_BOUND, Class.HOST_BOUND, Class.PERIODIC_STALL, Class.OPTIMIZER_BOUND,
        Class.EVALUATION_BOUND, Class.INITIALIZATION_BOUND, Class.STEP_OUTLIERS, Class.COMMUNICATION_BOUND,
        Class.UNBALANCED_GPUS, Class.MEMORY_GROWTH,
    ),
    (Class.COMPUTE_BOUND,),
    (Class.BALANCED,),
    (Class.INCONCLUSIVE,),
)  # fmt: skip
