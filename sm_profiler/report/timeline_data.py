"""The whole job on one axis: what the page's timeline draws, thinned so that extremes stay."""

from __future__ import annotations

from typing import Any

import numpy as np

from sm_profiler.formats.columns import Floats
from sm_profiler.report.job_metrics import Facts, Rank
from sm_profiler.report.step_fold import TRAIN
from sm_profiler.report.svg import shorten
from sm_profiler.report.system_fold import Buckets

POINTS = 1000  # points a series; a screen has hardly more columns
MAX_STRETCHES = 200  # of evaluation; more would run into one band, and some of them alone would mislead
LANES = (
    ("gpu", "GPU use", "%", (("gpu", "GPU use", "forward"),)),
    ("gpu_memory", "GPU memory", "%", (("gpu_memory", "GPU memory", "backward"),)),
    ("cpu", "CPU use", "%", (("cpu", "CPU use", "optimizer"), ("hottest_core", "hottest core", "wait"), ("io_wait", "I/O wait", "outside"))),
    ("memory", "Memory", "%", (("memory", "memory used", "evaluation"),)),
    ("network", "Network and disk", "B/s", (("received", "received", "forward"), ("sent", "sent", "backward"), ("disk_read", "disk read", "wait"), ("disk_write", "disk write", "outside"))),
)  # fmt: skip


def timeline(facts: Facts) -> dict[str, Any]:
    """Lanes of series; x in seconds since the job's start, y as low, mean and high of what each point stands for."""
    if facts.duration <= 0:
        return {}
    lanes = []
    steps = _step_lane(facts)
    if steps:
        lanes.append(steps)
    for key, title, unit, members in LANES:
        series = [one for metric, name, colour in members if (one := _metric(facts, metric, name, colour)) is not None]
        if series:
            lanes.append(
                {"id": key, "title": title, "unit": unit, "top": 100 if unit == "%" else None, "series": series}
            )
    loop = facts.loop
    stretches = _stretches(facts.ranks[0], facts.start) if facts.ranks else []
    return {
        "start": round(facts.start, 3),
        "length": round(facts.duration, 3),
        "loop": [round(edge - facts.start, 3) for edge in loop] if loop else None,
        "evaluation": stretches if len(stretches) <= MAX_STRETCHES else [],
        "stretches_left_out": len(stretches) if len(stretches) > MAX_STRETCHES else 0,
        "lanes": lanes,
    }


def _step_lane(facts: Facts) -> dict[str, Any] | None:
    ranks = [rank for rank in facts.ranks if len(rank.turns)]
    if not ranks:
        return None
    series = []
    for number, rank in enumerate(ranks[:3] if len(ranks) <= 3 else ranks[:1]):  # noqa: PLR2004 - what the number means stands in the line
        colour = ("forward", "wait", "optimizer")[number]
        series.append(
            thin(
                rank.turns.start - facts.start, rank.turns.length * 1e3, f"step time, {shorten(rank.name, 40)}", colour
            )
        )
    if len(ranks) > 3:  # noqa: PLR2004 - what the number means stands in the line
        start = np.concatenate([rank.turns.start for rank in ranks])
        length = np.concatenate([rank.turns.length for rank in ranks])
        order = np.argsort(start, kind="stable")
        series.append(thin(start[order] - facts.start, length[order] * 1e3, f"all {len(ranks)} ranks", "between"))
    return {"id": "steps", "title": "Step time", "unit": "ms", "top": None, "series": series}


def thin(x: Floats, y: Floats, name: str, colour: str) -> dict[str, Any]:
    """At most POINTS points; each keeps smallest, mean and largest of what it stands for."""
    edges = np.unique(np.linspace(0, len(x), min(POINTS, len(x)) + 1).astype(int))[:-1]
    counts = np.diff(np.append(edges, len(x)))
    return _series(
        name, colour, np.add.reduceat(x, edges) / counts, np.minimum.reduceat(y, edges), np.add.reduceat(y, edges) / counts,
        np.maximum.reduceat(y, edges),
    )  # fmt: skip


def _series(name: str, colour: str, x: Floats, low: Floats, mean: Floats, high: Floats) -> dict[str, Any]:  # noqa: PLR0913, PLR0917 - one argument a part, all but the first are options
    def rounded(values: Floats, digits: int) -> list[float | int]:
        return [
            int(value) if value == int(value) else value for value in np.round(values.astype(float), digits).tolist()
        ]

    return {
        "name": name,
        "colour": colour,
        "x": rounded(x, 2),
        "low": rounded(low, 2),
        "mean": rounded(mean, 2),
        "high": rounded(high, 2),
    }


def _metric(facts: Facts, metric: str, name: str, colour: str) -> dict[str, Any] | None:
    """One metric over all nodes and devices: mean, and the extremes of any of them."""
    whole = Buckets()
    found = facts.system.of(metric)
    for data in found.values():
        whole.merge(data)
    rows = whole.count > 0
    if not rows.any() or (
        metric in ("received", "sent", "disk_read", "disk_write") and float(whole.high[rows].max()) <= 0
    ):
        return None
    label = name if len(found) == 1 else f"{name}, {len(found)} {'GPUs' if metric.startswith('gpu') else 'nodes'}"
    return _series(
        label, colour, whole.seconds[rows] - facts.start, whole.low[rows], whole.mean[rows], whole.high[rows]
    )


def _stretches(rank: Rank, start: float) -> list[list[float]]:
    """Where evaluation ran, seconds since the job's start."""
    evaluation = rank.steps.mode != TRAIN
    edges = np.flatnonzero(np.diff(np.concatenate([[0], evaluation.astype(np.int8), [0]])))
    spans = [
        [float(rank.steps.start[a] / 1e6 - start), float(rank.steps.end[b - 1] / 1e6 - start)]
        for a, b in zip(edges[0::2], edges[1::2], strict=True)
    ]
    return [[round(a, 2), round(b, 2)] for a, b in spans]
