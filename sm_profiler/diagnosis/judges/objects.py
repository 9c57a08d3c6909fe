"""Objects that a growing process collects, as evidence of its growth."""

from __future__ import annotations

from sm_profiler.diagnosis import policy
from sm_profiler.diagnosis.judges.judge_context import JudgeContext
from sm_profiler.diagnosis.model import Evidence, Location
from sm_profiler.formats import event_names
from sm_profiler.printable import printable

MAX_LINES = 5


def grown_objects(context: JudgeContext, process: str) -> tuple[Evidence, ...]:
    """Return which objects a process has more of than when its memory began to grow."""
    found = context.metrics.records.get(event_names.OBJECTS)
    own = found.of(process) if found else ()
    if not own:
        return ()
    args, evidence = own[-1].args, []
    container, size, graphs, types = (
        args.get(name) for name in ("container", "tensor_bytes", "tensors_in_graphs", "types")
    )
    if isinstance(container, str):
        evidence.append(Evidence("container that grows most", container, None, process))
    if isinstance(size, int) and size >= policy.GROWTH_BYTES:
        evidence.append(Evidence("tensors gained", size, None, process, "bytes"))
    if isinstance(graphs, int) and graphs >= policy.GROWN_OBJECTS:
        evidence.append(Evidence("tensors gained that keep a graph", graphs, None, process))
    if isinstance(types, dict):
        gained = [
            f"{kind} +{count:,}"
            for kind, count in types.items()
            if isinstance(count, int) and count >= policy.GROWN_OBJECTS
        ]
        if gained:
            evidence.append(Evidence("objects gained", ", ".join(gained), None, process))
    return tuple(evidence)


def keeps_nothing(context: JudgeContext, process: str) -> bool:
    """Return whether objects were counted while a process grew, and none of the script's are more than before.

    Then libraries grow: allocators, and caches of kernels for each new shape, which fill and stop.
    """
    found = context.metrics.records.get(event_names.OBJECTS)
    own = found.of(process) if found else ()
    if not own:
        return False
    args = own[-1].args
    types = args.get("types")
    counts = [args.get("tensors_in_graphs"), *(types.values() if isinstance(types, dict) else ())]
    size = args.get("tensor_bytes")
    many = any(isinstance(count, int) and count >= policy.GROWN_OBJECTS for count in counts)
    return not many and not (isinstance(size, int) and size >= policy.GROWTH_BYTES)


def growing_lines(context: JudgeContext, process: str) -> tuple[Location, ...]:
    """Return the lines that add to the container that grows most."""
    found = context.metrics.records.get(event_names.OBJECTS)
    own = found.of(process) if found else ()
    lists = (one.args.get("lines") for one in reversed(own))
    lines: list[object] = next((one for one in lists if isinstance(one, list)), [])
    places = [one for one in lines[:MAX_LINES] if isinstance(one, list) and list(map(type, one)) == [str, int, str]]
    return tuple(
        Location(printable(file), line, printable(function), 1 / len(places)) for file, line, function in places
    )
