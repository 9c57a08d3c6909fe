"""GPUs that only other programs use: the monitor counts the work of all processes on a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sm_profiler.metrics import thresholds
from sm_profiler.metrics.attempts import process_name
from sm_profiler.metrics.system_fold import SystemSeries


def gpus_of_others(
    system: SystemSeries,
    loop: tuple[float, float],
    node_of: Mapping[str, str],
    metadata: Sequence[Mapping[str, Any]],
) -> tuple[tuple[str, str], ...]:
    """Return the GPUs, as node and device, that are busy on nodes whose processes all recorded that they use none.

    An idle GPU is not among them: that the training does not use it is worth a finding.

    Args:
        system: system metrics.
        loop: start and end of the training loop.
        node_of: name of a process that trains → its node.
        metadata: records of all processes. One has several, the first before it has trained; then nothing is known yet.
    """
    states: dict[str, set[bool]] = {name: set() for name in node_of}
    nodes = dict(node_of)
    for one in metadata:
        name, uses = process_name(one), one.get("uses_gpu")
        nodes.setdefault(name, str(one.get("node")))
        states.setdefault(name, set()).update({uses} if isinstance(uses, bool) else ())
    using = {nodes[name] for name, found in states.items() if found != {False}}
    without = set(nodes.values()) - using
    return tuple(
        gpu
        for gpu, data in system.of("gpu").items()
        if gpu[0] in without and data.mean_within(*loop) > thresholds.GPU_NEVER
    )
