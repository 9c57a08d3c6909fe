"""The causes that a profile is searched for: a row for each, which is all that a new cause needs besides its words and page."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.profile import calls, computing, inputs, job, machine, patterns, ranks
from sm_profiler.diagnosis.profile.case import Case, Found


@attrs.frozen
class ProfileCause:
    """A cause of lost time in a profile.

    Attributes:
        kind: class of its findings.
        find: recognizes it; returns what its repair saves, and what fills the places of its words.
        stops: the training did not go on, so that no faster step matters.
        on_host: it happens on the host, so that it costs no more than the time in which the device is idle.
        evicts: it runs between the parts of a step, which find their caches empty after it.
        points: its advice is to look for something, so that it begins with the line that takes most of the lost time.
    """

    kind: Class
    find: Callable[[Case], Found | None]
    stops: bool = False
    on_host: bool = False
    evicts: bool = False
    points: bool = False

    @property
    def name(self) -> str:
        """Name of the function that recognizes it."""
        return str(getattr(self.find, "__name__", self.kind.value))


def _waiting(case: Case) -> Found | None:
    """Find waiting for data that is no waiting for a shared file system."""
    return None if inputs.storage(case) is not None else inputs.waiting(case)


def _collections(case: Case) -> Found | None:
    """Find collections that do not cost more because ranks make them in turn."""
    return None if ranks.collections_in_turn(case) is not None else calls.collections(case)


def _evaluation(case: Case) -> Found | None:
    found = calls.evaluation(case)
    return found if found is not None and found.text != calls.GENERATION else None


def _generation(case: Case) -> Found | None:
    found = calls.evaluation(case)
    return found if found is not None and found.text == calls.GENERATION else None


def _small_batch(case: Case) -> Found | None:
    found = computing.host(case)
    return found if found is not None and found.text in computing.OF_BATCH else None


def _host(case: Case) -> Found | None:
    found = computing.host(case)
    return found if found is not None and found.text not in computing.OF_BATCH else None


CAUSES: tuple[ProfileCause, ...] = (
    ProfileCause(Class.DEAD_RANK, job.dead_rank, stops=True),
    ProfileCause(Class.UNEQUAL_STEPS, job.unequal_steps, stops=True),
    ProfileCause(Class.HANG, job.hang, stops=True),
    ProfileCause(Class.IDLE, job.idle),
    ProfileCause(Class.FAIL_SLOW, patterns.slowdown, points=True),
    ProfileCause(Class.SWAPPING, machine.swapping),
    ProfileCause(Class.GPU_THROTTLED, machine.clocks),
    ProfileCause(Class.SLOW_STORAGE, inputs.storage),
    ProfileCause(Class.INPUT_BOUND, _waiting, on_host=True, evicts=True),
    ProfileCause(Class.SYNC_BOUND, computing.outside, on_host=True, evicts=True, points=True),
    ProfileCause(Class.SYNC_BOUND, computing.one_function, on_host=True, evicts=True, points=True),
    ProfileCause(Class.USER_PHASE, computing.own_phase, on_host=True, evicts=True),
    ProfileCause(Class.BATCH_TOO_SMALL, _small_batch),
    ProfileCause(Class.HOST_BOUND, _host, on_host=True),
    ProfileCause(Class.PADDING_WASTE, computing.padding),
    ProfileCause(Class.DOUBLE_PRECISION, computing.double_precision),
    ProfileCause(Class.GC_BOUND, _collections, on_host=True, evicts=True),
    ProfileCause(Class.OPTIMIZER_BOUND, computing.optimizer),
    ProfileCause(Class.PERIODIC_STALL, patterns.periodic, points=True),
    ProfileCause(Class.STEP_OUTLIERS, patterns.outliers, points=True),
    ProfileCause(Class.EVALUATION_BOUND, _evaluation),
    ProfileCause(Class.USER_PHASE, _generation),
    ProfileCause(Class.INITIALIZATION_BOUND, job.start),
    ProfileCause(Class.MEMORY_GROWTH, job.memory),
    ProfileCause(Class.STRAGGLER, ranks.straggler, points=True),
    ProfileCause(Class.UNEQUAL_STEPS, ranks.more_steps),
    ProfileCause(Class.MOVING_STRAGGLER, ranks.turns, points=True),
    ProfileCause(Class.GC_OUT_OF_PHASE, ranks.collections_in_turn),
    ProfileCause(Class.COMMUNICATION_BOUND, ranks.communication),
    ProfileCause(Class.UNBALANCED_GPUS, ranks.unbalanced),
    ProfileCause(Class.COMPUTE_BOUND, machine.compute),
    ProfileCause(Class.CHECKPOINTING, calls.saving, on_host=True, evicts=True),
    ProfileCause(Class.LOGGING, calls.logging, on_host=True, evicts=True),
    ProfileCause(Class.SLOW_CALLBACK, calls.callbacks, on_host=True, evicts=True),
    ProfileCause(Class.HOST_BOUND, calls.host_calls, on_host=True),
    ProfileCause(Class.RECOMPILATION, calls.recompilation, on_host=True),
    ProfileCause(Class.OVERSUBSCRIBED, machine.threads, on_host=True),
    ProfileCause(Class.TRANSFER_BOUND, computing.transfer, on_host=True),
    ProfileCause(Class.ALLOCATOR, machine.allocator),
    ProfileCause(Class.TENSOR_CORES_UNUSED, machine.tensor_cores),
    ProfileCause(Class.MEMORY_BANDWIDTH_BOUND, machine.bandwidth),
)
