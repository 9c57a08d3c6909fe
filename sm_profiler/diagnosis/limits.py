"""The numbers that decide a verdict, each with its reason. What a step, a long step and idle are: `metrics.thresholds`.

Shares are from 0 to 1, percentages named as such.
"""

from sm_profiler.metrics import thresholds

FLOOR = thresholds.FLOOR  # the share of the time that a repair must certainly save to be worth naming

# How sure a number is.
FAR = 2 * FLOOR  # the share of the time that is surely beyond the floor
SURELY = 2  # times what other load or noise explains; what is closer may be chance
CLEARLY = 1.5  # times a limit, or what is usual; what is closer may be on its other side in another run
MIN_STEPS = 10  # of a table; fewer give no median that a single odd step cannot move
STEADY_STEPS = 100  # give the mean of a share within a few percent, as high confidence requires; what each keeps shows
SAMPLES = 10  # of a kind; fewer are chance
STRETCHES = 10  # that a run is cut into, to see its drift; fewer hide it, of more each has too few steps
SURE_SIGMAS = 3  # standard errors above the floor; chance does not reach this far in a thousand jobs
BEYOND_CHANCE = 4  # standard errors of a mean; among thousands of ranks none is beyond it by chance
INTERVAL = 0.9  # probability that a gain lies in its interval
ROUNDS = 400  # resamples, or other orders; the ends of a 90 % interval then vary by a twentieth of its width
SEED = 20240229  # fixed, so that the same data always give the same verdict
PROBABILITY = {"high": 0.98, "medium": 0.85, "low": 0.5}  # that a finding is right, as docs/benchmark.md shows
CLOSE = 0.8  # of the other; which of two this close is larger is partly chance
SEEN = 2 / 3  # of the time that must be known before a training is called healthy

# Parts of a whole.
MAJORITY = 0.5  # what accounts for most of something is its cause
MOST = 0.9  # nearly all: of a gain, of gaps that agree, of steps with a record
SHOWN = 0.05  # of a whole; smaller parts are not shown
PAUSE_STEPS = 20  # usual steps; logging, validation and checkpoints take less, or are recorded by name
REPEATS = 3  # occurrences before they are called regular
TOGETHER = 0.8  # correlation from which two quantities have the same cause; it explains 64 % of the variance

# What a repair leaves. Triples are what is saved at least, usually and at most.
MOST_SAVED = 0.99  # of the loop; no repair makes a loop more than a hundred times as fast
REPEAT = 0.03  # of a step; the same training on the same machine differs by this much from run to run
REPEAT_MOST = 0.15  # of a step; a machine that varies more is disturbed in this run only
SAVED = (0.86, 0.96, 1.0)  # a rare or shorter call is left, and what does the work instead takes time, too
PART_SAVED_INDIRECT = (0.5, 0.8)  # at least and usually, of a share that was not measured directly
EVICTED = 0.2  # of what is saved; what code between the parts of a step evicts from caches costs about as much more
KERNELS_SAVED = {  # of the time of kernels and gaps: TF32 saved 82 % on an H100, fusing elementwise operators 83 %, half the width 59 % on a CPU
    "INPUT_BOUND": (0.7, 0.9, 1.0), "SYNC_BOUND": (0.5, 0.8, 1.0), "HOST_BOUND": (0.3, 0.65, 1.0), "ALLOCATOR": (0.5, 0.8, 1.0),
    "COMMUNICATION_BOUND": (0.3, 0.55, 0.8), "TRANSFER_BOUND": (0.5, 0.8, 1.0), "TENSOR_CORES_UNUSED": (0.4, 0.6, 0.85),
    "MEMORY_BANDWIDTH_BOUND": (0.3, 0.5, 0.9), "DOMINANT_KERNEL": (0.2, 0.4, 0.7),
    "DOUBLE_PRECISION": (0.3, 0.5, 0.75),
}  # fmt: skip
HEALTHY = 0.15  # of the time; a healthy loop takes no more for anything that is no pass: data, other code, evaluation
NOTICEABLE = 0.2  # of a whole; from here on what is inferred counts: launches, idle time, waits for a core, growth
USUAL = 0.25  # of the time, or of the steps: a start, exceptions of a healthy job are no more
HEALTHY_PHASE = 0.35  # of a step; the optimizer of a small model takes no more
HIDDEN = 0.35  # of a step; collectives that overlap the backward pass take no more
BATCH_LARGER = 8  # times the batch; small batches are rarely limited by memory
GROWS = (0.3, 0.7, 1.0)  # of loading and computing, that grows with the batch: small ones leave cores and units idle

# Times, in seconds.
COLLATING_S = 1.5e-3  # collating a small batch in the training process takes less, however small the step
HANDOVER_S = 0.5e-3  # taking a batch that is ready takes less, and so does a Python loop's own code
TINY_STEP_S = 3e-3  # launching a few hundred operators from Python takes 1 to 3 ms: shorter steps are mostly overhead
SMALL_STEP_S = 10e-3  # launches may take half of a step this short; only a count of its operators shows it
START_S = 2.5  # to build a small model; twice as long to start Python and import a framework, and again for CUDA
IMPORTS_S = 60.0  # imports take no longer even on a slow, busy machine
SHORT_RUN_S = 900.0  # a trial run: its start is the price of trying; memory that is full this soon ends the job
PAGE_S = 1e-4  # to read a page back from swap, at least, even from a local SSD
HICCUP_S = 0.05  # that the system stops a thread: slices of a core for others, a cache of the device that is emptied

# The machine. Use is in percent.
WORKERS = 8  # to try first; more start slowly, take memory, and are rarely needed
BUSY = 75.0  # percent; a GPU is the limit, and CPU cores have nothing left to prepare batches with
SLOWER = 1.25  # times as long; clocks, caches and neighbours change steps by a tenth
NETWORK_BUSY = 50e6  # bytes a second received throughout the loop: data is streamed during training
TRICKLE = 1e6  # bytes a second throughout the loop; logs, metrics and single pages that return from swap take less
LAUNCH_MOST = 8  # times an operator's calibrated cost; CUDA, the optimizer and modules take 3.5 to 6 on an H100
SWITCHES = 500.0  # context switches a second and core; threads that fit onto the cores switch some ten times
GROWTH_BYTES = 50e6  # caches, allocator arenas and late imports gain some tens of megabytes in a healthy job
GPU_GROWTH = 15.0  # percentage points of a GPU's memory; a caching allocator takes some in steps
BLOCKS = (60, 5)  # stretches of a loop at most, and steps of each at least; the median of fewer is an outlier too often
PLAIN_BUSY = 40.0  # percent of the time of the units for single or double precision; products reach 75 %
BANDWIDTH = 65.0  # percent of the memory bandwidth; a transformer in bf16 takes 50 %, and no kernel more than 90 %
TRACE_KERNELS = 20  # fewer kernels are not a step of any training
