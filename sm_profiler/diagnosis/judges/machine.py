"""Judges of the machine: swapping, slow shared file systems, GPUs below their clock, batches that leave a GPU idle."""

from __future__ import annotations

import numpy as np

from sm_profiler.diagnosis import policy
from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.judges.judge_context import JudgeContext, mean_or_none
from sm_profiler.diagnosis.judges.loop import gpu_idle_in_phases, launches_may_explain
from sm_profiler.diagnosis.model import Evidence, Finding
from sm_profiler.formatting import duration, percent, shorten, size
from sm_profiler.metrics import thresholds
from sm_profiler.metrics.job_metrics import GpuMetrics, JobMetrics

MAX_MOUNTS = 4


def judge_swapping(context: JudgeContext) -> Finding | None:
    """Find memory that is swapped in and out while the loop runs."""
    metrics = context.metrics
    swapped, pressure = metrics.mean_of("swap_in"), metrics.mean_of("memory_pressure")
    if metrics.loop is None or swapped is None or swapped < policy.SWAPPED:
        return None
    faults = _fault_rate(metrics)
    least = min((faults or 0.0) * policy.FAULT_S, 1.0)
    share = max(least, (pressure or 0.0) / 100)
    if share < policy.SWAPPING:
        return None
    evidence = [
        Evidence("time in which some process waited for memory", round(share, 4), policy.SWAPPING, unit="share"),
        Evidence("memory swapped in", round(swapped), policy.SWAPPED, unit="bytes/s"),
    ]
    out, used = metrics.mean_of("swap_out"), metrics.mean_of("memory")
    if out is not None:
        evidence.append(Evidence("memory swapped out", round(out), unit="bytes/s"))
    if faults is not None:
        evidence.append(Evidence("page faults from disk a second", round(faults, 1)))
    if used is not None:
        evidence.append(Evidence("memory in use", round(used, 1), unit="percent"))
    return Finding(
        Class.SWAPPING,
        f"The machine is swapping in {size(swapped)}/s while the loop runs; processes stall on memory at least {percent(share)} of "
        "the time.",
        tuple(evidence),
        "Use less memory or an instance with more of it: fewer loader workers and a smaller prefetch_factor, datasets as arrays "
        "or memory-mapped files instead of Python objects, no copies of the data in each worker.",
        share,
        confidence=context.confidence(share, policy.SWAPPING, sure=pressure is not None),
    )


def _fault_rate(metrics: JobMetrics) -> float | None:
    """Return the page faults from disk a second: of the process with most in the loop, else of the machine."""
    if metrics.loop is None:
        return None
    own = [rate for usage in metrics.usage.values() if (rate := usage.fault_rate(*metrics.loop)) is not None]
    return max(own, default=metrics.mean_of("major_faults"))


def judge_storage(context: JudgeContext) -> Finding | None:
    """Find waiting for data that is waiting for a shared file system."""
    metrics, wait = context.metrics, context.wait
    if wait < policy.INPUT_WAIT:
        return None
    in_progress, latency = metrics.mean_of("nfs_in_progress"), metrics.mean_of("nfs_latency")
    stalled, read = (metrics.mean_of("io_pressure") or 0.0) / 100, metrics.mean_of("disk_read")
    mounts = _shared_mounts(metrics)
    evidence = [
        Evidence("time in the training loop spent waiting for data", round(wait, 4), policy.INPUT_WAIT, unit="share")
    ]
    if in_progress is not None and in_progress >= policy.STORAGE * wait:
        busy = min(in_progress, 1.0)
        evidence.append(
            Evidence("NFS operations in progress, on average", round(in_progress, 3), round(policy.STORAGE * wait, 3))
        )
        if latency is not None:
            evidence.append(Evidence("mean duration of an NFS operation", round(latency, 3), unit="ms"))
    elif mounts and stalled >= policy.STORAGE * wait and (read or 0.0) < policy.LOCAL_READS:
        busy = stalled
        evidence.append(
            Evidence(
                "time in which some process waited for I/O",
                round(busy, 4),
                round(policy.STORAGE * wait, 4),
                unit="share",
            )
        )
        evidence.append(Evidence("reads from local disks", round(read or 0.0), policy.LOCAL_READS, unit="bytes/s"))
    else:
        return None
    if mounts:
        evidence.append(
            Evidence("shared file systems", ", ".join(f"{place} ({kind})" for place, kind in mounts.items()))
        )
    share = min(metrics.average_share("wait"), busy)
    took = f"; an operation takes {duration(latency / 1e3)}" if latency else ""
    return Finding(
        Class.SLOW_STORAGE,
        f"The loop waits for data {percent(wait)} of the time because the loader waits for a shared file system{took}.",
        tuple(evidence),
        "Copy the data to local disk at the start (or cache it there in the first epoch), pack small files into large ones, and "
        "read ahead with more workers. Check the file system's throughput mode and burst credits (EFS), or its stripes (Lustre).",
        share,
        confidence=context.confidence(wait, policy.INPUT_WAIT, sure=in_progress is not None),
    )


def _shared_mounts(metrics: JobMetrics) -> dict[str, str]:
    """Return the shared file systems of all processes, mount point → type."""
    found: dict[str, str] = {}
    for one in metrics.metadata:
        mounts = one.get("shared_mounts")
        found |= (
            {shorten(str(place), 60): shorten(str(kind), 20) for place, kind in mounts.items()}
            if isinstance(mounts, dict)
            else {}
        )
    return dict(list(found.items())[:MAX_MOUNTS])


def judge_clocks(context: JudgeContext) -> Finding | None:
    """Find a GPU that works, but far below its clock: throttled by heat or hardware, or limited."""
    found = [one for gpu in context.metrics.gpus if (one := _clock_of(context, gpu)) is not None]
    return max(found, key=lambda one: one.share_of_time, default=None)


def _clock_of(context: JudgeContext, gpu: GpuMetrics) -> Finding | None:
    metrics = context.metrics
    clock = _gpu_mean(metrics, "gpu_clock", gpu)
    if clock is None or not gpu.mean >= policy.CLOCKED_USE:
        return None
    heat = (_gpu_mean(metrics, "gpu_by_heat", gpu) or 0.0) / 100
    hardware = (_gpu_mean(metrics, "gpu_by_hardware", gpu) or 0.0) / 100
    power = (_gpu_mean(metrics, "gpu_by_power", gpu) or 0.0) / 100
    peers = [
        value
        for other in metrics.gpus
        if other is not gpu and other.mean >= policy.CLOCKED_USE
        and (value := _gpu_mean(metrics, "gpu_clock", other)) is not None
    ]  # fmt: skip
    possible = _gpu_mean(metrics, "gpu_clock_max", gpu)
    usual = max(float(np.median(peers)) if peers else 0.0, (possible or 0.0) * policy.SUSTAINED_CLOCK)
    if usual <= 0:
        return None
    lost = 1 - clock / usual
    throttled = max(heat, hardware) >= policy.THROTTLED
    if lost < (policy.CLOCK_LOST if throttled else policy.UNDERCLOCKED):
        return None
    where = f"{gpu.node} {gpu.name}"
    if throttled:
        why = "its hardware slows it down (power brake, voltage)" if hardware > heat else "it is too hot"
    elif power >= policy.POWER_CAPPED:
        why = "its power limit is reached"
    else:
        why = "no throttling is reported, so its clock is limited by a setting"
    evidence = [
        Evidence("mean GPU clock in the loop", round(clock), round(usual), where, "MHz", "usually"),
        Evidence("time throttled by heat", round(heat, 4), policy.THROTTLED, where, "share"),
        Evidence("time throttled by hardware", round(hardware, 4), policy.THROTTLED, where, "share"),
        Evidence("time at the power limit", round(power, 4), policy.POWER_CAPPED, where, "share"),
    ]
    temperature = _gpu_mean(metrics, "gpu_temperature", gpu)
    if temperature is not None:
        evidence.append(Evidence("mean temperature, °C", round(temperature, 1), None, where))
    share = lost * min(gpu.mean / 100, 1.0)
    return Finding(
        Class.GPU_THROTTLED,
        f"{gpu.name} of {gpu.node} runs at {clock:.0f} MHz instead of {usual:.0f} MHz: {why}. About {percent(share)} of the loop is "
        "lost.",
        tuple(evidence),
        "Replace the instance if its GPU is hot or braked (the job resumes from a checkpoint), and report it. Otherwise reset "
        "limits that were set: nvidia-smi -rgc -rac (clocks), nvidia-smi -pl (power).",
        share,
        confidence="high" if throttled and lost >= policy.CLEARLY * policy.CLOCK_LOST else "medium",
    )


def _gpu_mean(metrics: JobMetrics, metric: str, gpu: GpuMetrics) -> float | None:
    data = metrics.system.of(metric).get((gpu.node, gpu.name))
    if data is None:
        return None
    mean = data.mean_within(*(metrics.loop or (metrics.start, metrics.end)))
    return mean if np.isfinite(mean) else None


def judge_batch(context: JudgeContext) -> Finding | None:
    """Find batches too small for the GPU, with what its memory still holds."""
    idle = gpu_idle_in_phases(context)
    fullest = [gpu.memory_max for gpu in context.metrics.gpus if np.isfinite(gpu.memory_max)]
    gpu = context.gpu_mean
    if idle is None or not fullest or not context.ranks or gpu is None or gpu <= thresholds.GPU_NEVER:
        return None
    used = max(fullest)
    if policy.BATCH_ROOM < used < policy.BATCH_FULL or not launches_may_explain(context):
        return None
    iteration = context.mean(lambda rank: rank.mean("length"))
    evidence = [
        *idle.evidence[:2],
        Evidence("most GPU memory in use", round(used, 1), policy.BATCH_ROOM, unit="percent"),
        Evidence("mean time of a step", round(iteration * 1e3, 3), unit="ms"),
    ]
    batch = context.metrics.batch_size
    if batch:
        evidence.append(Evidence("batch size", batch))
        evidence.append(Evidence("samples a second and process", round(batch / max(iteration, 1e-9), 1)))
    if used <= policy.BATCH_ROOM:
        times = int((100 - policy.BATCH_RESERVE) / max(used, 1.0))
        headline = (
            f"The batch is too small for the GPU: it is busy {gpu:.0f} % of the time, and at most {used:.0f} % of its memory is used, "
            f"so a batch {times} times as large fits."
        )
        advice = (
            f"Double the batch size until a step takes clearly longer (at least {times} times fits), and scale the learning rate. "
            f"Where the batch must stay small: {context.stack.fewer_launches}."
        )
    else:
        headline = f"The GPU is busy {gpu:.0f} % of the time, but its memory ({used:.0f} % in use) does not hold a larger batch."
        advice = (
            "Make the batch smaller in memory, then larger in samples: bf16 autocast, activation checkpointing, an optimizer with 8-bit states, gradients set to "
            "None; PyTorch keeps freed memory, so check torch.cuda.max_memory_allocated() first. Or launch less: torch.compile."
        )
    share = idle.share_of_time
    median = mean_or_none([one.mean for one in context.metrics.gpus]) or gpu
    return Finding(
        Class.BATCH_TOO_SMALL, headline, tuple(evidence), advice, share,
        confidence=context.confidence(policy.PHASES_GPU_LOW / max(median, 1.0), 1.0, sure=used <= policy.BATCH_ROOM),
    )  # fmt: skip
