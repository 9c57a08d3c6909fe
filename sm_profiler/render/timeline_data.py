"""Data of the page's timeline: the whole job on one axis, thinned so that extremes stay."""

from __future__ import annotations

from typing import Any

import numpy as np

from sm_profiler.formats.columns import Floats
from sm_profiler.formatting import shorten
from sm_profiler.metrics.job_metrics import JobMetrics, Rank
from sm_profiler.metrics.step_fold import TRAIN
from sm_profiler.metrics.system_fold import Buckets
from sm_profiler.render.charts import LINE_COLOURS

MAX_SHOWN = 1e15  # keeps digits after rounding; larger values are damage
POINTS = 1000  # per series; a screen has hardly more columns
MAX_STRETCHES = 200  # of evaluation; more would merge into one band, and a selection would mislead
MAX_RANK_LINES = 3  # more ranks than this are one line, beside the first rank's
LANES = (
    ("gpu", "GPU use", "%", (("gpu", "GPU use", "blue"),)),
    ("gpu_memory", "GPU memory", "%", (("gpu_memory", "GPU memory", "sky"),)),
    ("cpu", "CPU use", "%", (("cpu", "CPU use", "teal"), ("hottest_core", "busiest core", "amber"), ("io_wait", "I/O wait", "rose"))),
    ("memory", "Memory", "%", (("memory", "memory used", "violet"),)),
    ("network", "Network and disk", "B/s", (("received", "received", "blue"), ("sent", "sent", "sky"), ("disk_read", "disk read", "amber"), ("disk_write", "disk write", "rose"))),
)  # fmt: skip


def timeline(metrics: JobMetrics) -> dict[str, Any]:
    """Return the lanes: x in seconds since the job's start, y as low, mean and high of the data behind each point."""
    if metrics.duration <= 0:
        return {}
    lanes = []
    steps = _step_lane(metrics)
    if steps:
        lanes.append(steps)
    for key, title, unit, members in LANES:
        series = [
            one for metric, name, colour in members if (one := _metric(metrics, metric, name, colour)) is not None
        ]
        if series:
            lanes.append(
                {"id": key, "title": title, "unit": unit, "top": 100 if unit == "%" else None, "series": series}
            )
    loop = metrics.loop
    stretches = _stretches(metrics.ranks[0], metrics.start) if metrics.ranks else []
    return {
        "start": round(metrics.start, 3),
        "length": round(metrics.duration, 3),
        "loop": [round(edge - metrics.start, 3) for edge in loop] if loop else None,
        "evaluation": stretches if len(stretches) <= MAX_STRETCHES else [],
        "stretches_left_out": len(stretches) if len(stretches) > MAX_STRETCHES else 0,
        "lanes": lanes,
    }


def _step_lane(metrics: JobMetrics) -> dict[str, Any] | None:
    ranks = [rank for rank in metrics.ranks if len(rank.iterations)]
    if not ranks:
        return None
    series = []
    for number, rank in enumerate(ranks if len(ranks) <= MAX_RANK_LINES else ranks[:1]):
        colour = LINE_COLOURS[number]
        series.append(
            thin(
                rank.iterations.start - metrics.start,
                rank.iterations.length * 1e3,
                f"step time, {shorten(rank.name, 40)}",
                colour,
            )
        )
    if len(ranks) > MAX_RANK_LINES:
        start = np.concatenate([rank.iterations.start for rank in ranks])
        length = np.concatenate([rank.iterations.length for rank in ranks])
        order = np.argsort(start, kind="stable")
        series.append(thin(start[order] - metrics.start, length[order] * 1e3, f"all {len(ranks)} ranks", "grey"))
    return {"id": "steps", "title": "Step time", "unit": "ms", "top": None, "series": series}


def thin(x: Floats, y: Floats, name: str, colour: str) -> dict[str, Any]:
    """Reduce a series to at most POINTS points with the smallest, mean and largest value of the data behind each."""
    edges = np.unique(np.linspace(0, len(x), min(POINTS, len(x)) + 1).astype(int))[:-1]
    counts = np.diff(np.append(edges, len(x)))
    return _series(
        name, colour, np.add.reduceat(x, edges) / counts, np.minimum.reduceat(y, edges), np.add.reduceat(y, edges) / counts,
        np.maximum.reduceat(y, edges),
    )  # fmt: skip


def _series(
    name: str, colour: str, x: Floats, low: Floats, mean: Floats, high: Floats
) -> dict[str, Any]:  # one argument a part, all but the first are options
    def rounded(values: Floats, digits: int) -> list[float | int]:
        return [
            int(value) if value == int(value) else value
            for value in np.round(np.nan_to_num(values.astype(float)).clip(-MAX_SHOWN, MAX_SHOWN), digits).tolist()
        ]

    return {
        "name": name,
        "colour": colour,
        "x": rounded(x, 2),
        "low": rounded(low, 2),
        "mean": rounded(mean, 2),
        "high": rounded(high, 2),
    }


def _metric(metrics: JobMetrics, metric: str, name: str, colour: str) -> dict[str, Any] | None:
    """Return one metric over all nodes and devices: their mean, and the extremes of any of them."""
    whole = Buckets()
    found = metrics.system.of(metric)
    for data in found.values():
        whole.merge(data)
    rows = whole.count > 0
    if not rows.any() or (
        metric in ("received", "sent", "disk_read", "disk_write") and float(whole.high[rows].max()) <= 0
    ):
        return None
    label = name if len(found) == 1 else f"{name}, {len(found)} {'GPUs' if metric.startswith('gpu') else 'nodes'}"
    return _series(
        label, colour, whole.seconds[rows] - metrics.start, whole.low[rows], whole.mean[rows], whole.high[rows]
    )


def _stretches(rank: Rank, start: float) -> list[list[float]]:
    """Return the spans of evaluation in seconds since the job's start."""
    if rank.judged is not None:
        return []
    evaluation = rank.steps.mode != TRAIN
    edges = np.flatnonzero(np.diff(np.concatenate([[0], evaluation.astype(np.int8), [0]])))
    spans = [
        [float(rank.steps.start[a] / 1e6 - start), float(rank.steps.end[b - 1] / 1e6 - start)]
        for a, b in zip(edges[0::2], edges[1::2], strict=True)
    ]
    return [[round(a, 2), round(b, 2)] for a, b in spans]
