"""The machine: swapping, too many threads, GPUs that are throttled, fragmented, or busy with what they are slow at."""

from __future__ import annotations

from functools import partial

import numpy as np

from sm_profiler.diagnosis import limits
from sm_profiler.diagnosis.model import Evidence
from sm_profiler.diagnosis.profile.case import Case, Found
from sm_profiler.diagnosis.profile.loop import Loop
from sm_profiler.diagnosis.repairing import Saving
from sm_profiler.diagnosis.words import FRAGMENTS
from sm_profiler.formats.recorded import Allocator, Threads
from sm_profiler.formatting import percent, plural, size
from sm_profiler.metrics.job_metrics import GpuMetrics, JobMetrics


def swapping(case: Case) -> Found | None:
    """Find memory that is swapped in and out while the loop runs."""
    metrics = case.metrics
    swapped, pressure = metrics.mean_of("swap_in"), metrics.mean_of("memory_pressure")
    if metrics.loop is None or swapped is None or swapped < limits.TRICKLE:
        return None
    own = [rate for usage in metrics.usage.values() if (rate := usage.fault_rate(*metrics.loop)) is not None]
    faults = max(own, default=metrics.mean_of("major_faults"))
    share = max(min((faults or 0.0) * limits.PAGE_S, 1.0), (pressure or 0.0) / 100)
    evidence = [
        Evidence("time in which some process waited for memory", round(share, 4), unit="share"),
        Evidence("memory swapped in", round(swapped), limits.TRICKLE, unit="bytes/s"),
    ]
    for name, value, unit in (
        ("memory swapped out", metrics.mean_of("swap_out"), "bytes/s"),
        ("page faults from disk a second", faults, ""),
        ("memory in use", metrics.mean_of("memory"), "percent"),
    ):
        if value is not None:
            evidence.append(Evidence(name, round(value, 1), unit=unit))
    words = {"rate": size(swapped), "share": percent(share)}
    doubt = "" if pressure is not None else "estimated from page faults"
    return Found("swapping", words, tuple(evidence), share, doubt=doubt)


def clocks(case: Case) -> Found | None:
    """Find a GPU that works, but far below its clock: throttled by heat or hardware, or limited."""
    found = [one for gpu in case.metrics.gpus if (one := _clock_of(case, gpu)) is not None]
    return max(found, key=lambda one: one.share, default=None)


def _clock_of(case: Case, gpu: GpuMetrics) -> Found | None:
    metrics = case.metrics
    clock = _gpu_mean(metrics, "gpu_clock", gpu)
    if clock is None or not gpu.mean >= 100 * limits.MAJORITY:  # a GPU with less to do lowers its clock
        return None
    heat, hardware, power = (
        (_gpu_mean(metrics, metric, gpu) or 0.0) / 100 for metric in ("gpu_by_heat", "gpu_by_hardware", "gpu_by_power")
    )
    peers = [
        value
        for other in metrics.gpus
        if other is not gpu and other.mean >= 100 * limits.MAJORITY
        and (value := _gpu_mean(metrics, "gpu_clock", other)) is not None
    ]  # fmt: skip
    possible = _gpu_mean(metrics, "gpu_clock_max", gpu)
    # under full load a GPU runs at 80 to 95 % of its highest clock
    usual = max(float(np.median(peers)) if peers else 0.0, (possible or 0.0) * limits.CLOSE)
    if usual <= 0:
        return None
    lost, throttled = 1 - clock / usual, max(heat, hardware) >= limits.FAR
    if lost < (limits.FLOOR + limits.REPEAT if throttled else limits.USUAL):  # power limits cost about a tenth
        return None
    where = f"{gpu.node} {gpu.name}"
    if throttled:
        why = "by_hardware" if hardware > heat else "by_heat"
    else:
        why = "by_power" if power >= limits.MAJORITY else "by_setting"
    evidence = [
        Evidence("mean GPU clock in the loop", round(clock), round(usual), where, "MHz", "usually"),
        Evidence("time throttled by heat", round(heat, 4), limits.FAR, where, "share"),
        Evidence("time throttled by hardware", round(hardware, 4), limits.FAR, where, "share"),
        Evidence("time at the power limit", round(power, 4), limits.MAJORITY, where, "share"),
    ]
    temperature = _gpu_mean(metrics, "gpu_temperature", gpu)
    if temperature is not None:
        evidence.append(Evidence("mean temperature, °C", round(temperature, 1), None, where))
    share = lost * min(gpu.mean / 100, 1.0)
    words = {
        "gpu": gpu.name, "node": gpu.node, "clock": f"{clock:.0f}", "usual": f"{usual:.0f}", "why": FRAGMENTS[why],
        "share": percent(share),
    }  # fmt: skip
    doubt = "" if throttled else "no throttling is reported"
    return Found("clocks", words, tuple(evidence), share, error=0.0, doubt=doubt)


def _gpu_mean(metrics: JobMetrics, metric: str, gpu: GpuMetrics) -> float | None:
    data = metrics.system.of(metric).get((gpu.node, gpu.name))
    if data is None:
        return None
    mean = data.mean_within(*(metrics.loop or (metrics.start, metrics.end)))
    return mean if np.isfinite(mean) else None


def threads(case: Case) -> Found | None:
    """Find more threads than cores, if the threads keep each other waiting."""
    records = case.metrics.recorded(Threads)
    worst: Found | None = None
    for rank in case.ranks:
        own = [one for one in records.of(rank.name) if one.end > rank.start and one.start < rank.end]
        seconds = sum(one.seconds for one in own)
        cores = max((one.args.cores for one in own), default=0.0)
        if seconds <= 0 or cores <= 0:
            continue
        ranks = sum(other.node == rank.node for other in case.ranks)
        workers = max(case.metrics.loader.num_workers, 0)
        of_libraries = float(np.median([one.args.library_threads for one in own]))
        count = ranks * (of_libraries + workers)
        switches = sum(one.args.switches for one in own) / seconds / cores
        waited = sum(one.args.waited_ns for one in own) / 1e9 / seconds
        # the rest is other load on the machine, which fewer threads do not end
        share = min(waited, 1.0) * max(1 - cores / count, 0.0) if count > 0 else 0.0
        only_ranks = of_libraries <= 1 and not workers and ranks > cores
        if only_ranks:  # more cores end all waits that other programs do not cause
            share = max(min(waited, 1.0) - case.shared_wait, 0.0)
        if count < limits.CLEARLY * cores or switches < limits.SWITCHES or share <= (worst.share if worst else 0.0):
            continue
        evidence = (
            Evidence("threads for each core", round(count / cores, 2), limits.CLEARLY, rank.name),
            Evidence("main thread waits for a core", round(waited, 4), None, rank.name, "share"),
            Evidence("context switches a second and core", round(switches), limits.SWITCHES, rank.name),
            Evidence("cores that the job may use", round(cores, 2), None, rank.name),
        )
        words = {
            "threads": plural(ranks, "rank") if only_ranks else f"{count:.0f} library and worker threads",
            "cores": "1 core" if cores == 1 else f"{cores:.3g} cores", "waited": percent(waited),
            "fewer": FRAGMENTS["fewer_ranks" if only_ranks else "fewer_threads"].format(fit=max(int(cores / ranks) - workers, 1)),
        }  # fmt: skip
        worst = Found(
            "threads", words, evidence, share, saves=partial(_fitting, share, max(waited - case.shared_wait, share)),
            doubt="the part that other processes cause is unknown",
        )  # fmt: skip
    return worst


def _fitting(share: float, most: float, loop: Loop) -> Saving:
    """Save a part of the waits for cores, and at most all but those for other programs."""
    least, value = limits.PART_SAVED_INDIRECT
    return Saving(loop.now * share * value, least / value, min(most, 1.0) / share / value)


def allocator(case: Case) -> Found | None:
    """Find allocations on the device that were retried after freeing the cache."""
    records = case.metrics.recorded(Allocator)
    worst: Found | None = None
    for rank in case.ranks:
        own = [one.args for one in records.of(rank.name) if rank.start <= one.start <= rank.end]
        if not own or rank.loop <= 0:
            continue
        last = own[-1]
        retries = last.retries - own[0].retries
        share = min(retries * limits.HICCUP_S / rank.loop, 1.0)
        if retries <= 0 or (worst is not None and worst.share >= share):
            continue
        reserved, split = last.reserved_bytes, last.split_bytes
        evidence = [
            Evidence("allocations retried in the loop", retries, None, rank.name),
            Evidence("time lost in them, estimated", round(share, 4), None, rank.name, "share"),
        ]
        if reserved > 0:
            pieces = round(split / reserved, 4)
            evidence.append(Evidence("reserved memory in unusable pieces", pieces, None, rank.name, "share"))
        if last.ooms > 0:
            evidence.append(Evidence("allocations that failed", last.ooms, None, rank.name))
        fragmented = FRAGMENTS["fragmented"].format(split=size(split), reserved=size(reserved)) if split else ""
        words = {"retries": f"{retries}", "fragmented": fragmented}
        worst = Found("allocator", words, tuple(evidence), share, doubt="the time is estimated")
    return worst


def tensor_cores(case: Case) -> Found | None:
    """Find GPUs that compute all the time with their units for single or double precision."""
    used = [one for one in ("gpu_single", "gpu_double") if (case.gpu_counter(one) or 0.0) >= limits.PLAIN_BUSY]
    tensor, gpu = case.gpu_counter("gpu_tensor"), case.gpu_mean
    if tensor is None or tensor >= 100 * limits.FLOOR or not used or gpu is None or gpu < limits.BUSY:
        return None
    plain, precision = case.gpu_counter(used[0]) or 0.0, "single" if used[0] == "gpu_single" else "double"
    evidence = (
        Evidence(f"units for {precision} precision busy", round(plain, 1), limits.PLAIN_BUSY, unit="percent"),
        Evidence("tensor cores busy", round(tensor, 2), 100 * limits.FLOOR, unit="percent", held="good from"),
        Evidence("mean GPU use in the loop", round(gpu, 1), unit="percent"),
    )
    words = {
        "precision": precision, "plain": f"{plain:.0f}", "tensor": f"{tensor:.0f}",
        "first": "" if precision == "single" else FRAGMENTS["float64"],
    }  # fmt: skip
    share = min(plain / limits.BUSY, 1.0) * gpu / 100  # products do not keep their units busy for longer
    return Found("tensor_cores", words, evidence, share, saves=partial(_kernels, "TENSOR_CORES_UNUSED", share))


def bandwidth(case: Case) -> Found | None:
    """Find GPUs that spend their time on reading and writing their memory."""
    used, gpu = case.gpu_counter("gpu_bandwidth"), case.gpu_mean
    if used is None or used < limits.BANDWIDTH or gpu is None or gpu < limits.BUSY:
        return None
    evidence = [
        Evidence("memory bandwidth of the GPU in use", round(used, 1), limits.BANDWIDTH, unit="percent"),
        Evidence("mean GPU use in the loop", round(gpu, 1), unit="percent"),
    ]
    tensor = case.gpu_counter("gpu_tensor")
    if tensor is not None:
        evidence.append(Evidence("tensor cores busy", round(tensor, 2), unit="percent"))
    share = min(used / (100 * limits.MOST), 1.0) * gpu / 100  # more of the bandwidth cannot be reached
    return Found(
        "bandwidth", {"used": f"{used:.0f}"}, tuple(evidence), share,
        saves=partial(_kernels, "MEMORY_BANDWIDTH_BOUND", share),
        doubt="" if used >= limits.BUSY else "products come close to this rate, too", error=0.0,
    )  # fmt: skip


def _kernels(kind: str, share: float, loop: Loop) -> Saving:
    """Return what usual repairs of slow kernels save, as in traces."""
    low, value, high = limits.KERNELS_SAVED[kind]
    return Saving(loop.length * share * value, low / value, high / value)


def compute(case: Case) -> Found | None:
    """Find a job whose GPUs are busy, as they should be."""
    gpu = case.gpu_mean
    if gpu is None or gpu < limits.BUSY:
        return None
    evidence = Evidence("mean GPU use in the loop", round(gpu, 1), limits.BUSY, unit="percent", held="good from")
    return Found("compute", {"gpu": f"{gpu:.0f}"}, (evidence,), 0.0)
