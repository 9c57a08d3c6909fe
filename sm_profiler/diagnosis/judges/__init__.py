"""Judges: functions without state that turn a `JudgeContext` into a finding or None."""

from sm_profiler.diagnosis.judges.calls import judge_callbacks, judge_logging, judge_saving
from sm_profiler.diagnosis.judges.devices import judge_bandwidth, judge_compute, judge_tensor_cores, judge_unbalanced
from sm_profiler.diagnosis.judges.ends import judge_dead_rank, judge_unequal_steps
from sm_profiler.diagnosis.judges.hang import judge_hang
from sm_profiler.diagnosis.judges.idle import judge_idle
from sm_profiler.diagnosis.judges.inputs import judge_input
from sm_profiler.diagnosis.judges.job import judge_evaluation, judge_initialization, judge_memory
from sm_profiler.diagnosis.judges.judge_context import Judge, JudgeContext
from sm_profiler.diagnosis.judges.loop import judge_declared, judge_gc, judge_host, judge_optimizer, judge_sync
from sm_profiler.diagnosis.judges.machine import judge_batch, judge_clocks, judge_storage, judge_swapping
from sm_profiler.diagnosis.judges.ranks import judge_communication, judge_straggler
from sm_profiler.diagnosis.judges.runtime import judge_allocator, judge_recompilation, judge_threads, judge_transfer
from sm_profiler.diagnosis.judges.slowdown import judge_slowdown
from sm_profiler.diagnosis.judges.stalls import judge_outliers, judge_periodic
from sm_profiler.diagnosis.judges.turns import judge_gc_turns, judge_turns
from sm_profiler.diagnosis.model import Finding


def judge_waits(context: JudgeContext) -> Finding | None:
    """Find waiting for data; that for a shared file system has a name of its own."""
    return judge_storage(context) or judge_input(context)


def judge_work(context: JudgeContext) -> Finding | None:
    """Find steps with too little work; what fits into a GPU's memory is known of a batch that is too small."""
    return judge_batch(context) or judge_host(context)


JUDGES: tuple[Judge, ...] = (
    judge_dead_rank, judge_unequal_steps, judge_hang, judge_idle, judge_slowdown,
    judge_swapping, judge_clocks, judge_waits, judge_sync, judge_declared, judge_work, judge_gc, judge_optimizer, judge_periodic, judge_outliers, judge_evaluation,
    judge_initialization, judge_memory, judge_straggler, judge_turns, judge_gc_turns, judge_communication, judge_unbalanced, judge_compute,
    judge_saving, judge_logging, judge_callbacks, judge_recompilation, judge_threads, judge_transfer, judge_allocator,
    judge_tensor_cores, judge_bandwidth,
)  # fmt: skip

__all__ = ["JUDGES", "Judge", "JudgeContext"]
