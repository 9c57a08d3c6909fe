"""Does the loop wait for batches, and why?"""

from __future__ import annotations

import math

from sm_profiler.report import policy
from sm_profiler.report.classes import Class
from sm_profiler.report.judges.judge_context import Case, confidence, duration, percent
from sm_profiler.report.judges.workers import workers_of
from sm_profiler.report.model import Evidence, Finding


def judge_input(case: Case) -> Finding | None:
    """The loop stands in `next(loader)`; or, where nobody recorded that, the system metrics look like it."""
    return _by_waits(case) or (None if case.waits_known else _by_system(case))


def _by_waits(case: Case) -> Finding | None:
    wait = case.wait
    typical = case.mean(lambda rank: rank.usual("wait", without_stalls=False))
    if wait < policy.INPUT_WAIT.value or typical * 1e3 < policy.INPUT_WAIT_MS.value:
        return None
    share = case.facts.average_share("wait")  # of the whole loop, evaluation included: what the picture shows
    evidence = [
        Evidence(
            "time in the training loop spent waiting for data", round(share, 4), policy.INPUT_WAIT.value, unit="share"
        ),
        Evidence("mean wait for a batch", round(typical * 1e3, 3), policy.INPUT_WAIT_MS.value, unit="ms"),
    ]
    cause, advice, more = _cause(case)
    turn = case.mean(lambda rank: rank.usual("length", without_stalls=False))
    sentence = f"{_waits(share, typical, turn)}{cause}."
    sure = case.waits_known
    return Finding(
        Class.INPUT_BOUND, sentence, (*evidence, *more), advice, share,
        confidence=confidence(case, wait, policy.INPUT_WAIT.value, sure=sure),
    )  # fmt: skip


def _waits(share: float, wait: float, turn: float) -> str:
    """`48 % of the time: 150 ms of …`; where evaluation makes the step's share another one, both."""
    of_step = wait / turn if turn > 0 else 0.0
    if abs(of_step - share) < policy.SAME_SHARE.value:
        return f"The loop waits for data {percent(share)} of the time: {duration(wait)} of an average training step of {duration(turn)}"
    short, unit = duration(wait).split(" ")
    length, unit_of_step = duration(turn).split(" ")
    both = f"{short} of {length} {unit}" if unit == unit_of_step else f"{short} {unit} of {length} {unit_of_step}"
    return f"Training waits for data {percent(share)} of the loop ({percent(of_step)} of a training step: {both})"


def _cause(case: Case) -> tuple[str, str, list[Evidence]]:
    """Why the loader is slow: a half sentence, the next step, and evidence."""
    facts = case.facts
    workers, cpu, io_wait = facts.loader.num_workers, facts.mean_of("cpu"), facts.mean_of("io_wait")
    received, pool = facts.mean_of("received"), workers_of(case)
    more = []
    if workers >= 0:
        more.append(Evidence("DataLoader worker processes", workers, unit=""))
    if cpu is not None:
        more.append(
            Evidence("mean CPU use in the loop", round(cpu, 1), 100 * policy.LOADER_HOT_CPU.value, unit="percent")
        )
    if io_wait is not None and io_wait > policy.IO_WAIT.value:
        more.append(Evidence("mean I/O wait in the loop", round(io_wait, 1), policy.IO_WAIT.value, unit="percent"))
        return (
            ", and the cores wait for the disk",
            (
                "Read from faster or closer storage (local NVMe, FSx), or pack small files into large binary ones "
                "(WebDataset, Parquet, TFRecord); then let workers prefetch (prefetch_factor)."
            ),
            more,
        )
    if received is not None and received > policy.NETWORK_BUSY.value:
        more.append(
            Evidence("mean network input in the loop", round(received), policy.NETWORK_BUSY.value, unit="bytes/s")
        )
        return (
            ", while data streams in over the network",
            (
                "Make what comes over the network smaller (compress, resize once, binary shards), keep it on local disk after "
                "the first epoch, or use FastFile mode or FSx closer to the job."
            ),
            more,
        )
    if workers == 0:
        return (
            ", because batches are prepared in the training process itself (num_workers=0)",
            (
                f"Prepare batches in worker processes: DataLoader(…, num_workers={pool.suggested}, "
                f"persistent_workers=True, pin_memory=True where there is a GPU). {pool.advice()}"
            ),
            more,
        )
    hot = cpu is not None and cpu >= 100 * policy.LOADER_HOT_CPU.value
    if hot or (workers > 0 and pool.room and workers >= pool.room and not pool.idle):
        return (
            ", and the CPU cores have no room left for preprocessing"
            if hot
            else ", with a worker for each core already",
            (
                "Make preprocessing cheaper: do it once and store the result, decode and augment with faster libraries or on the "
                "GPU, or take an instance with more CPU cores for each GPU."
            ),
            more,
        )
    if workers > 0:
        return (
            f": {workers} worker{'s' * (workers > 1)} cannot keep up",
            (
                f"Give the DataLoader more workers (num_workers={pool.suggested} instead of {workers}) and a larger "
                f"prefetch_factor. {pool.advice()}"
            ),
            more,
        )
    return (
        "",
        (
            "Give the input pipeline more parallelism (more workers, prefetching); if the CPU is busy, preprocess once and store "
            "the result."
        ),
        more,
    )


def _by_system(case: Case) -> Finding | None:
    """GPUs idle while CPU cores are saturated or wait for the disk: the footprint of a slow input pipeline."""
    idle = case.gpu_idle
    if idle is None or idle < policy.GPU_IDLE.value:
        return None
    cpu, disk = case.rule_share("CPUBottleneck"), case.rule_share("IOBottleneck")
    share = max(cpu, disk)
    if share < policy.INPUT_SYSTEM.value or math.isclose(idle, 1.0):  # a GPU that never works does not wait for data
        return None
    cores_or_disk = "CPU cores are saturated" if cpu >= disk else "CPU cores wait for the disk"
    advice = (
        "Give the loader more workers and let it prefetch; if all cores are busy, preprocess once and store the result."
        if cpu >= disk
        else "Read from faster or closer storage, or pack small files into large binary ones; then prefetch."
    )
    evidence = (
        Evidence(
            f"moments in which GPUs idle while {cores_or_disk}",
            round(share, 4),
            policy.INPUT_SYSTEM.value,
            unit="share",
        ),
        Evidence("GPU samples below 10 % in the loop", round(idle, 4), policy.GPU_IDLE.value, unit="share"),
    )
    return Finding(
        Class.INPUT_BOUND, f"The GPUs idle while {cores_or_disk} {percent(share)} of the time: they wait for data.",
        evidence, advice, share, confidence=confidence(case, share, policy.INPUT_SYSTEM.value, sure=False),
    )  # fmt: skip
