"""Every number that a verdict depends on, each with its reason; the other modules compare with these names only."""

from __future__ import annotations

from sm_profiler.diagnosis.classes import Class
from sm_profiler.metrics.thresholds import Threshold

T = Threshold

# How much data a judgement needs.
STEADY_STEPS = T(100, "100 steps give the mean of a share within a few percent, as high confidence requires")
MIN_GPU_SAMPLES = T(20, "20 samples are 10 s at the default 500 ms; fewer show one moment of the job")
WAITS_SEEN = T(0.9, "share of the steps with a recorded wait; the windowed profiles of the old hook never reach it")
CLEARLY = T(1.5, "times the threshold; measurement error does not reach this far")

PROFILING_COST = T(
    0.05, "of the loop's time; a job that the profiler slows by more is not the job that was to be judged"
)


# Input.
INPUT_WAIT = T(
    0.15, "share of the loop; a loader that just keeps up costs a few percent, and above 15 % workers pay off"
)
SAME_SHARE = T(0.02, "two points; shares of the loop and of a step this close are reported as one")
INPUT_SYSTEM = T(0.5, "half of all moments, the threshold of CPUBottleneck and IOBottleneck themselves")
SLOW_STAGE = T(0.5, "of all stages' time for a batch; a stage above it takes more than all others together")
MEASURED_STAGES = T(
    0.5, "of a wait that the measured stages explain; below, most of it is in the one that TensorFlow forgot"
)
INPUT_WAIT_MS = T(1.5, "collating a small batch in the training process takes less than this, however small the step")
HANDOVER_MS = T(0.5, "taking a batch that a worker or a pipeline has ready takes less, however small the step")
GPU_IDLE = T(0.35, "a GPU that is idle in over a third of the samples waits for something during most of each step")
ALWAYS_IDLE = T(1.0, "a GPU that is idle in all samples is unused; it does not wait for data")
WORKERS = T(8, "workers to try first; more of them start slowly, take memory, and are rarely needed")
LOADER_IDLE = T(
    0.5, "of the cores that loading would occupy if it computed; below, it mostly waits for storage or network"
)
IDLE_WORKERS = T(32, "workers that mostly wait occupy no core, but each takes the memory of a process")
OTHERS_CORES = T(
    0.4, "of the machine's cores in use by other programs while few are free: threads that load have to wait for them"
)
LOADER_HOT_CPU = T(75.0, "percent mean CPU use; above it, preprocessing has no cores left while the loop waits")
IO_WAIT = T(20.0, "percent; with a fifth of the time in I/O wait the loader is limited by the disk, not the CPU")
NETWORK_BUSY = T(50e6, "bytes a second received throughout the loop: data is streamed during training")
BURSTS = T(0.5, "long waits per round of the loader's workers; this many come from slow workers, not from stalls")

# Inside the loop.
OUTSIDE = T(0.20, "logging, metrics and the loss take less than a tenth of a healthy loop; a finding is twice that")
OUTSIDE_BY_HAND = T(0.40, "as OUTSIDE, if the update of the parameters is outside, too, and samples do not show it")
OUTSIDE_SAMPLES = T(30, "samples outside the phases; fewer do not show where the time goes")
OUTSIDE_MS = T(0.5, "per step; less is the cost of a Python loop, which HOST_BOUND covers")
USER_PHASE = T(0.20, "of the loop, as OUTSIDE: where the script itself has named the time, the name is the finding")
LAUNCHES = T(
    0.2, "of a typical step: the calibration is a lower bound, and what a script's operators cost is twice that"
)
LAUNCHES_TINY = T(0.12, "as LAUNCHES, in steps of TINY_STEP_MS: what lies beside the operators is Python, too")
LAUNCHES_ERROR = T(0.15, "of the calibrated cost; operators differ in it, and so do moments on a busy machine")
ONE_BY_ONE = T(
    0.25,
    "of the loop: JAX launches an operation from Python in 10 to 100 µs, and of a compiled step in a microsecond or two",
)
ONE_BY_ONE_SAMPLES = T(20, "samples of JAX's own Python; fewer do not show a share of the loop")
TINY_STEP_MS = T(
    3.0, "launching a few hundred operators from Python takes 1 to 3 ms: shorter steps are mostly overhead"
)
TINY_COMPILED_MS = T(0.4, "one call of a function of jax.jit takes 0.03 to 0.2 ms, however little it computes")
TINY_GRAPH_MS = T(
    1.0, "one call of a tf.function takes 0.2 to 0.5 ms beside its operators, which C++ launches in 1 to 3 µs each"
)
ONE_CALL = T(0.5, "of the phases in compiled functions: a step is one call instead of hundreds of operators")
TINY_STEP_MIN_LOSS = T(0.3, "share; the least that overhead takes of a step this short")
TINY_STEP_MAX_LOSS = T(0.9, "share; some of even the smallest step is arithmetic")
EVALUATION = T(0.3, "to evaluate half as often gains 15 %, as with INPUT_WAIT; a fifth of the loop is usual")
OPTIMIZER = T(0.40, "fused and foreach optimizers take 2 to 15 % of a step; 40 % exceeds the backward pass")
OPTIMIZER_TINY = T(0.60, "in steps of a millisecond or two, launching the optimizer usually takes a third")
GPU_IDLE_IN_PHASES = T(0.25, "share of idle samples while the loop is in its phases: launches do not keep up")
PHASES_GPU_LOW = T(50.0, "percent; the loop computes all the time, yet the GPU is idle for more than half of it")
NEVER_USED_LOSS = T(0.95, "share; an unused GPU is lost nearly completely")
GPU_MEMORY_FREE = T(60.0, "percent of GPU memory in use; below it, a batch half as large again fits")

# Single long steps.
OUTLIER_COST = T(0.08, "as STALL_COST, for steps without a period; the machine's own noise costs some percent, too")
RESTARTED = T(
    0.5, "of the time lost in long steps; a loader that starts again takes more of them than all else together"
)
OUTLIER_LENGTH = T(3.0, "times the median; a busy machine doubles steps but hardly triples them")

# Calls that the hook times one by one.
CALLBACK_SAVES = T(0.5, "of a callback's call in which it saves a file: the file is then the cause")
WRITTEN_SAMPLES = T(10, "samples in lines that write text; fewer are chance")
RECOMPILATIONS = T(3, "in the loop; once or twice, compilers generalize to what varies, and it does not happen again")
THREADS_PER_CORE = T(1.5, "threads of libraries and workers for each core; some more than cores do no harm")
SWITCHES = T(500.0, "context switches a second and core; threads that fit onto the cores switch some ten times")
CORE_WAIT = T(0.05, "of the loop that the main thread waits for a core, by its share of threads beyond the cores")
SHARED = T(0.2, "of the loop without a core; the job would be a fifth faster on a machine of its own")
LEAST_WORK = T(0.05, "of a step on a core; waits are sampled, and a step without work would divide by zero")
MOSTLY_SHARED = T(0.5, "of the loop without a core; more waits than work, which hide any other cause")
MOSTLY_WINDOWS = T(0.5, "of the loop in detailed windows; too little is left to judge without them")
CORE_WAIT_MOST = T(0.6, "share of the loop; more is other load on the machine, which fewer threads do not end")
TRANSFER = T(0.10, "of the training thread's samples; a copy from pinned memory returns at once")
TRANSFER_SAMPLES = T(10, "samples in copies; fewer are chance")
RETRIES = T(5, "retried allocations; a few while the loop warms up are normal")
RETRY_S = T(0.05, "seconds for each: the device finishes its work, and all cached memory is returned to the driver")
RETRY_COST = T(
    0.02, "share of the loop, estimated from RETRY_S; steps get longer irregularly, and memory is nearly full"
)
EXPLAINED = T(0.5, "of lost time; what accounts for most of it is its cause")

UNSEEN_WAITS = T(
    0.3, "of the loop in lines that hand arrays of JAX to numpy; Python and launches alone leave less to wait for"
)

# Before the loop.
INIT_ALLOWANCE_S = T(5.0, "starting Python and importing torch takes 2 to 5 s and cannot be avoided")
INIT_ALLOWANCE_GPU_S = T(12.0, "as INIT_ALLOWANCE_S, with the start of CUDA and its libraries")
INIT_LOADING_S = T(
    60.0, "imports take no longer even on a slow, busy machine; a hook made later measures something else"
)
INIT_DEVICE_S = T(6.0, "CUDA context, NCCL and cuDNN start within some seconds")
INIT_MODEL_S = T(2.0, "after the import, building a model and opening a dataset")
INITIALIZATION = T(0.25, "a quarter of the paid time before the first step")
START_PART = T(0.4, "of the start; a part this large is the one to repair first")
START_PART_SHOWN = T(0.05, "of the start; smaller parts do not matter")
COMPILING_S = T(1.0, "in the first steps; less is no start to complain about, however short the job")
COMPILING_IN_VAIN = T(1.0, "compiling that takes longer than all other steps has not paid off; it needs no allowance")
SHORT_RUN_S = T(120.0, "a trial run: its start is the price of trying, and is paid once in a job of hours")
INIT_WEIGHT = T(0.5, "a start is paid once and a slow loop with every epoch: the start leads only if twice as large")

# Idle.
IDLE = T(0.2, "of the job; ends and pauses of a few seconds are part of every job")
IDLE_CORES = T(0.25, "cores; a thread that works occupies one, a waiting process with its hook a few hundredths")
IDLE_SAMPLED = T(0.5, "of a span that samples of a process cover; the process may compute in the rest")
IDLE_MACHINE_CORES = T(0.5, "cores of a machine, however many it has; one thread that computes occupies one")
PAUSE = T(20, "usual iterations; logging, validation and checkpoints take less, or are recorded by name")
PAUSE_KNOWN = T(0.5, "of a pause that is recorded as a checkpoint, a compilation or the like, which is its cause then")

# Slowed down during the run.
CHANGE_BLOCKS = T(60, "blocks of steps whose medians are compared: enough for the test, each without outliers")
CHANGE_BLOCK_STEPS = T(5, "steps a block; the median of fewer is an outlier too often")
CHANGE_MIN_BLOCKS = T(16, "with fewer blocks even a clear change may be chance")
CHANGE_CHANCE = T(
    1e-4, "probability that some moment looks like this in a steady loop; neighbouring steps resemble each other"
)
CHANGE_SIDE = T(0.1, "of the loop on each side of the change; less is a warm-up or an end")
CHANGE_APART = T(
    0.95, "of all pairs of an earlier and a later block have the later one longer: a change, not noise that grew"
)
CHANGE_APART_CLEAR = T(
    0.85, "of the pairs, if steps take twice as long or more: blocks of a busy machine may be long, too"
)
SLOWER = T(1.25, "times as long; clocks, caches and neighbours change steps by a tenth")
SLOWER_BY_OTHERS = T(2.0, "times as long, if others began to use the CPU: the load of a shared machine varies")
OTHERS_CORES = T(0.5, "cores that others use more than before; daemons wake up for less")
CHANGED = T(1.5, "times as much or as little as before; the usual variation of a system metric stays below")
CHANGED_CLOCK = T(1.08, "times; clocks vary by a few percent with temperature")
CHANGED_POINTS = T(10.0, "percentage points, below which a change of use is not worth naming")
CHANGED_BYTES = T(1e6, "bytes a second; logs and metrics cause less")

# The machine.
SWAPPED = T(1e6, "bytes a second read back from swap throughout the loop; single pages return now and then")
SWAPPING = T(0.1, "of the time some process waits for memory; a machine with enough of it never waits")
FAULT_S = T(1e-4, "seconds, the least that reading a page takes even from a local SSD; from other disks it is more")
STORAGE = T(0.5, "of the waiting for data; the file system is busy for the loader in at least half of it")
LOCAL_READS = T(5e6, "bytes a second from local disks; what the loader waits for comes from elsewhere then")
CLOCKED_USE = T(40.0, "percent mean use; a GPU with less to do lowers its clock")
THROTTLED = T(0.1, "of the time; a GPU that is cooled well is never throttled by heat or hardware")
CLOCK_LOST = T(0.08, "of the usual clock, while throttled; clocks vary by a few percent with temperature")
UNDERCLOCKED = T(0.25, "of the usual clock, without throttling by heat or hardware; power limits cost about a tenth")
SUSTAINED_CLOCK = T(0.8, "of the highest clock; under full load a GPU runs at 80 to 95 % of it")
POWER_CAPPED = T(0.5, "of the time at the power limit, which explains a low clock then")
PLAIN_BUSY = T(
    40.0, "percent of the time in which the units for single or double precision work; products keep them busy for 75 %"
)
TENSOR_IDLE = T(5.0, "percent; tensor cores work a fifth of the time and more in usual training in half precision")
BANDWIDTH = T(65.0, "percent of the memory bandwidth; a transformer in bf16 takes 50 %, and no kernel more than 90 %")
BANDWIDTH_CLEAR = T(75.0, "percent; products never need this much")
BANDWIDTH_MOST = T(90.0, "percent; more cannot be reached, so a GPU at this rate does nothing else")
PLAIN_MOST = T(75.0, "percent; as BANDWIDTH_MOST, for products of single precision")
BATCH_ROOM = T(45.0, "percent of GPU memory; below, a batch twice as large fits, with a reserve")
BATCH_FULL = T(90.0, "percent of GPU memory; above, no larger batch fits as it is")
BATCH_RESERVE = T(10.0, "percent of GPU memory that a batch should leave for fragmentation and longer inputs")

# Memory.
GROWTH_SHARE = T(0.15, "of the memory in use at the start of the loop, gained in the loop after warming up")
GROWTH_BYTES = T(50e6, "caches, allocator arenas and late imports gain some tens of megabytes in a healthy job")
GROWTH_WARM_UP = T(0.1, "share of the samples left out at the start: caches and allocators fill")
GROWTH_SAMPLES = T(4, "a line and its error need a handful of points; the size of the growth guards against chance")
LATE_SAMPLES = T(3, "two points always fit a line, so the slope of the second half needs three")
GROWTH_SIGMAS = T(5.0, "standard errors of the slope; memory samples are correlated, so 2 would fire on noise")
GROWTH_LATE = T(0.4, "of the overall rate must persist in the second half; less is warming up")
GROWTH_UNKEPT = T(0.8, "as GROWTH_LATE, if no object of the script is kept: caches of libraries slow down as they fill")
MAX_CORRELATION = T(0.95, "of neighbouring residuals; the error of fully correlated samples would be unbounded")
GPU_GROWTH = T(15.0, "percentage points of GPU memory gained over the loop and kept")
GPU_GROWTH_TAIL = T(0.1, "share of the samples at the end that show whether the growth was kept")
HOST_GROWTH = T(
    5.0, "percentage points of the node's memory gained over the loop; the page cache is not counted as used"
)
GROWN_OBJECTS = T(50, "of a type; fewer are the state of libraries, not what a loop collects")
GROWTH_WEIGHT = T(0.15, "growth costs no time until the job dies; this ranks it between small and large losses")
FATAL_S = T(900.0, "memory that is full within a quarter of an hour ends the job; no faster step matters before that")

# Several processes, several GPUs.
STRAGGLER = T(0.12, "share of a step by which the slowest rank's work exceeds the others' median; jitter stays below")
WAITED = T(0.5, "of the straggler's extra work must appear as waiting in the others; the rest may overlap")
IN_STEP = T(0.15, "ranks that wait for each other have iterations of equal length; independent ones differ")
TURNS = T(
    0.12, "share of a step, as STRAGGLER, without the worst tenth of the steps: preempted processes are in that tenth"
)
ONE_RANK = T(
    0.5, "of the way from equal turns to a single rank that causes all delays: beyond it, one rank is at fault"
)
GC_TURNS_LEAD = T(0.5, "of a rank's own collections; from there on, to collect together gains about as much as not to")
COMMUNICATION = T(0.40, "collectives overlap the backward pass up to a third of the step; above 40 % they are exposed")
UNBALANCED = T(30.0, "percentage points between the most and the least used GPU of a node")
IDLE_GPU = T(50.0, "percent mean GPU use; a GPU that is idle more than half of the time is not used well")
COMPUTE = T(80.0, "percent mean GPU use in the loop; the accelerator is the limit, as it should be")

# Lines of code.
WHERE_SAMPLES = T(5, "samples; with fewer, the line seen most often may be there by chance")
WHERE_SHARE = T(0.05, "of the lost time; repairing a line below it gains nothing that could be measured")
POINTED_SHARE = T(0.3, "of the lost time; a function with less is one of several, and the advice names none")
WHERE_FORWARD = T(0.2, "of what long backward passes lose; a backward pass takes twice its forward, so both grew")
WHERE_ONE_RANK = T(0.9, "of a line's time; below it, other ranks run into the line as well")

# What the host does can cost no more than the time in which the GPU is idle: these findings count with that at most.
BESIDE_THE_GPU = (
    Class.INPUT_BOUND, Class.SYNC_BOUND, Class.USER_PHASE, Class.HOST_BOUND, Class.GC_BOUND, Class.LOGGING,
    Class.SLOW_CALLBACK, Class.TRANSFER_BOUND, Class.CHECKPOINTING, Class.RECOMPILATION, Class.OVERSUBSCRIBED,
)  # fmt: skip
IDLE_USUAL = T(
    0.10,
    "of the loop in which the GPU of a healthy job is idle, between kernels and steps; no repair of the host ends it",
)
IDLE_ERROR = T(0.05, "of the loop; a GPU's use is sampled, and short pauses between kernels count as use")
LAUNCHES_LATE = T(0.25, "of the loop in which a GPU is idle; less is the lateness of a host that launches ahead")
LAUNCHES_ON_GPU = T(
    8.0,
    "times the calibrated cost of an operator: CUDA's launch, the optimizer and modules; 3.5 to 6 on an H100's host",
)

# What a repair saves. `REST` numbers are what stays after a good repair; a value between the limits is the usual case.
GAIN_MOST = T(0.99, "of the loop; no repair makes a loop more than a hundred times as fast")
INPUT_CERTAIN = T(
    0.35, "of the waiting, that preparing less for each batch saves on any machine, even where no core is free"
)
LOADER_REST_MS = T(0.3, "per batch; receiving it from a worker through shared memory")
LOADER_SLOWED = T(1.15, "times as long; the step while workers use the other cores and the memory's bandwidth")
EXCESS_SAVED_LEAST = T(0.85, "of what long steps cost beyond usual ones; a repair may leave a short one in their place")
EXCESS_SAVED = T(0.95, "as EXCESS_SAVED_LEAST, for the usual repair: rarely, or in another thread")
LOGGING_SAVED = T(0.98, "as EXCESS_SAVED_LEAST, for logging at every 50th step")
CALLS_UNSEEN = T(1.05, "times the recorded calls; their arguments are prepared before them")
RECOMPILING_SAVED: tuple[float, float, float] = (
    T(0.88, "of the recorded recompilations: padding to a few lengths computes on the padding, too"),
    0.96,
    1.03,  # the first calls of new code are slow as well
)
SLOWDOWN_SAVED: tuple[float, float, float] = (
    T(0.85, "of the time lost since a slowdown; some of it may have been the usual drift of the machine"),
    0.97,
    1.05,
)
GC_SAVED_LEAST = T(0.85, "of the time in collections; gc.disable() with a rare gc.collect() keeps some of it")
GC_SAVED = T(0.96, "as GC_SAVED_LEAST, usually: one full collection in several hundred steps is left")
GC_UNSEEN = T(1.1, "times the recorded collections; those below a millisecond are not recorded")
OUTSIDE_REST_MOST = T(0.1, "of the rest of a step; logging and metrics of a healthy loop take no more")
OUTSIDE_REST = T(0.02, "as OUTSIDE_REST_MOST, usually: zero_grad and the loop's own Python")
OPTIMIZER_SAVED_LEAST = T(
    0.5, "of the optimizer; one for sparse gradients, or that runs less often, still does part of the work"
)
OPTIMIZER_REST_MOST = T(0.15, "of a step; fused and foreach optimizers take 2 to 15 %")
OPTIMIZER_REST = T(0.06, "as OPTIMIZER_REST_MOST, usually")
OPTIMIZER_REST_LEAST = T(0.02, "as OPTIMIZER_REST_MOST, at best")
EVALUATION_SAVED_LEAST = T(0.5, "of the evaluation; the least that 'less often' means is half as often")
EVALUATION_SAVED = T(0.75, "as EVALUATION_SAVED_LEAST, usually: a smaller sample or every few epochs")
EVALUATION_SAVED_MOST = T(1.0, "as EVALUATION_SAVED_LEAST: another job evaluates the checkpoints")
BATCH_LARGER = T(8.0, "times the batch; small batches are rarely limited by memory")
LAUNCHES_MORE: tuple[float, float, float] = (  # times the calibrated cost of an operator; most, usual and least
    T(1.5, "modules, larger operators and autograd take more than what was calibrated"),
    1.3,
    1.1,
)
ARITHMETIC: tuple[float, float, float] = (  # that grows with the batch; least, usual and most
    0.0,
    T(0.3, "of the passes beyond their launches; tensors of a small step leave caches and vector units half empty"),
    1.0,
)
LOADING_GROWS: tuple[float, float, float] = (
    T(0.4, "of the waiting for data; samplers, queues and the collating of a batch cost much once a batch"),
    0.7,
    1.0,
)
DEVICE_GROWS: tuple[float, float, float] = (
    T(0.3, "of the time in which a GPU is busy; kernels of a small batch fill a part of it"),
    0.7,
    1.0,
)
START_SAVED_LEAST = T(0.4, "of a start beyond what is normal; caches and streaming still read the first data")
START_SAVED = T(0.7, "as START_SAVED_LEAST, usually")
UNMODELLED: dict[str, tuple[float, float]] = {  # confidence → least and usual share; at most, all of it
    "high": (
        T(0.7, "of the lost share is saved at least where no model fits and the cause was measured directly"),
        0.9,
    ),
    "medium": (T(0.5, "as for high confidence, where the cause was partly inferred"), 0.8),
    "low": (T(0.25, "as for high confidence, where the cause is one of several"), 0.6),
}

# Traces of torch.profiler. Shares of the time from the first kernel to the last.
TRACE_STEPS = T(3, "whole steps; even if they launch little, they show what usual steps do")
TRACE_LAUNCHES = T(200, "fewer launches are a fraction of a step, which may be unusual")
TRACE_KERNELS = T(20, "fewer kernels are not a step of any training")
TRACE_SYNC = T(0.10, "waits for the device are avoidable nearly always; a tenth is worth the change")
TRACE_LAUNCH = T(0.25, "the host is a little late in most healthy jobs: at the start of a step, in the optimizer")
TRACE_EXPOSED = T(0.15, "the last bucket of gradients is always exposed, which takes some percent")
TRACE_COPIES = T(0.10, "a batch copied from pinned memory ahead of its step is hidden completely")
TRACE_PLAIN = T(0.25, "tensor cores make these kernels two to eight times as fast; below, little of the step is won")
TRACE_ELEMENTWISE = T(0.35, "activations, norms and copies cost a third of a usual transformer without fusion")
TRACE_DOMINANT = T(0.25, "products aside, the most expensive kernel of a usual model takes less than a tenth")
TRACE_LAST = T(0.6, "of the collectives; of two equal ranks each comes last to half of them")
# Part of the lost share that the advised repair saves: at least, probably, at most.
TRACE_REPAIRED = {
    Class.INPUT_BOUND: (0.7, 0.9, 1.0),
    Class.SYNC_BOUND: (0.5, 0.8, 1.0),
    Class.HOST_BOUND: (0.4, 0.65, 0.9),
    Class.COMMUNICATION_BOUND: (0.3, 0.55, 0.8),
    Class.TRANSFER_BOUND: (0.5, 0.8, 1.0),
    Class.TENSOR_CORES_UNUSED: (0.4, 0.6, 0.85),  # TF32 saved 82 % on an H100
    Class.MEMORY_BANDWIDTH_BOUND: (0.3, 0.5, 0.9),  # torch.compile saved 83 % of nothing but elementwise operators
    Class.DOMINANT_KERNEL: (0.2, 0.4, 0.7),
    Class.STRAGGLER: (0.7, 0.9, 1.0),
}

# Money.
HALF_EMPTY = T(45.0, "percent; the next smaller instance has about half of everything, so all use must stay below half")

# Trainings that stopped.
MAX_PLACES = T(5, "lines that a finding points to; more do not help")

# Confidence. The probabilities are promises: docs/diagnosis.md has the share of verdicts that kept them.
PROBABILITY = {
    "high": T(0.98, "of the verdicts called high are right"),
    "medium": T(0.85, "of the verdicts called medium are right"),
    "low": T(0.5, "a guess"),
}
SURE_SIGMAS = T(3.0, "standard errors above the threshold; chance does not reach this far in a thousand jobs")
LIKELY_SIGMAS = T(1.0, "standard errors above the threshold; chance reaches this far in one job of six")
ERROR_BLOCKS = T(10, "stretches of the loop compared for a standard error; neighbouring steps resemble each other")
CLOSE = T(0.8, "of the leading finding's expected gain; which of two this close leads is partly chance")
NEAR = T(0.8, "of a threshold; a loop this close to a finding is healthy by a hair's breadth only")
UNEXPLAINED = T(0.25, "of the loop in waits, outside the phases and in long steps; a healthy one stays well below")
MOSTLY_UNEXPLAINED = T(0.5, "of the loop; healthy is then a guess, since more time is unexplained than explained")
SMALL_STEP_MS = T(10.0, "launches may take half of a step this short; only a count of its operators shows it")
