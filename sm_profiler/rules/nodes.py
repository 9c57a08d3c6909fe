"""Which node a process ran on: system metrics name nodes (algo-1), events name processes (algo-1-0)."""

from __future__ import annotations

import re

import numpy as np

from sm_profiler.formats.columns import EventColumns, Ints

_NODE = re.compile(r"(algo-\d+)(?:-|$)")


def node_of(process: str) -> str:
    """algo-1 of algo-1-0; another name (a host's) stands for itself, without the number of the process."""
    match = _NODE.match(process)
    return match[1] if match else re.sub(r"^\d+-|-\d+$", "", process)


def on_node(events: EventColumns, node: str, *, alone: bool) -> Ints:
    """The row numbers of a node's events; of all events where it is the only node and no process carries its name."""
    mask = events.node.mask(lambda process: node_of(process) == node)
    return np.arange(len(events)) if alone and not mask.any() else np.flatnonzero(mask)


def natural(text: str) -> tuple[object, ...]:
    """A sort key under which algo-2 comes before algo-10."""
    return tuple((0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", text))
