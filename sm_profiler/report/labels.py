"""What the page says of classes and rules, in our words."""

from __future__ import annotations

from sm_profiler.report.classes import Class

# class → how people say it
NAMES = {
    Class.BALANCED: "Healthy",
    Class.INPUT_BOUND: "Waiting for data",
    Class.COMPUTE_BOUND: "Healthy: the accelerator is the limit",
    Class.HOST_BOUND: "Held back by the host",
    Class.SYNC_BOUND: "Busy between the steps",
    Class.GC_BOUND: "Stopped by garbage collection",
    Class.PERIODIC_STALL: "Stalls at regular intervals",
    Class.STEP_OUTLIERS: "A few very long steps",
    Class.INITIALIZATION_BOUND: "Slow to start",
    Class.EVALUATION_BOUND: "Mostly evaluating",
    Class.OPTIMIZER_BOUND: "Slow optimizer",
    Class.MEMORY_GROWTH: "Memory keeps growing",
    Class.STRAGGLER: "One rank holds the others back",
    Class.COMMUNICATION_BOUND: "Busy communicating",
    Class.UNBALANCED_GPUS: "GPUs used unevenly",
    Class.INCONCLUSIVE: "Not enough data to judge",
}

# slice of the loop → (label, colour class)
SLICES = {
    "wait": ("Waiting for data", "wait"),
    "forward": ("Forward", "forward"),
    "backward": ("Backward", "backward"),
    "optimizer": ("Optimizer", "optimizer"),
    "between": ("Between phases", "between"),
    "evaluation": ("Evaluation", "evaluation"),
    "outside": ("Outside the phases", "outside"),
}

# rule → (what it looks for, what to do)
RULES = {
    "CPUBottleneck": (
        "GPUs are idle while CPU cores are saturated.",
        "Give the data loader more workers and let it prefetch; move preprocessing out of the training process.",
    ),
    "IOBottleneck": (
        "GPUs are idle while CPU cores wait for the disk.",
        "Prefetch, pack small files into binary formats, and keep the data on storage closer to the job.",
    ),
    "LowGPUUtilization": (
        "GPU use is low, or swings between busy and idle.",
        "Find the bottleneck first; then make fewer blocking calls, or use a larger batch.",
    ),
    "GPUMemoryIncrease": (
        "GPU memory rises from one stretch of samples to the next.",
        "If it comes close to the limit, take an instance with more GPU memory; else look for tensors kept alive.",
    ),
    "BatchSize": (
        "CPU, GPU and GPU memory all have room left.",
        "Use a larger batch, or a smaller and cheaper instance.",
    ),
    "MaxInitializationTime": (
        "Too much time passes before the first training step.",
        "Stream the data instead of downloading it before the start.",
    ),
    "LoadBalancing": (
        "GPUs of one node are loaded differently.",
        "Use another distribution strategy; give each GPU its own process.",
    ),
    "StepOutlier": (
        "Some steps take far longer than the others.",
        "Look for what coincides with them: checkpoints, logging, odd samples, the input pipeline.",
    ),
    "Dataloader": (
        "The number of loader processes does not fit the CPU cores.",
        "Match num_workers to the cores, and use pin_memory and prefetching.",
    ),
    "OverallSystemUsage": ("Statistics of the system metrics; never fires.", ""),
    "OverallFrameworkMetrics": ("Statistics of the framework metrics; never fires.", ""),
}
