"""Estimate the cost of lost time from a dated table of list prices, or from the user's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from sm_profiler.report import policy
from sm_profiler.report.job_metrics import JobMetrics
from sm_profiler.report.model import Verdict


def built_in() -> dict[str, Any]:
    """Return the table of the package: `{"as_of": …, "region": …, "dollars_per_hour": {type: price}}`."""
    table: dict[str, Any] = json.loads((files("sm_profiler.report") / "templates" / "prices.json").read_text("utf-8"))
    return table


def cost_of(metrics: JobMetrics, verdict: Verdict, prices: Mapping[str, float] | None = None) -> dict[str, Any] | None:
    """Return the cost per hour and how much of it is lost; None if the instance type or its price is unknown."""
    table = built_in()
    price_of = prices if prices is not None else table["dollars_per_hour"]
    types = metrics.node_types
    if not types or any(kind not in price_of for kind in types):
        return None
    nodes = sum(types.values())
    hourly = sum(float(price_of[kind]) * count for kind, count in types.items())
    kind = " + ".join(types)
    machines = " + ".join(f"{count} x {kind}" for kind, count in types.items())
    share = verdict.main.share_of_time
    if verdict.main.of == "loop" and metrics.loop and metrics.duration:
        share *= (metrics.loop[1] - metrics.loop[0]) / metrics.duration
    lost = hourly * share
    origin = "your price table" if prices is not None else f"list prices of {table['region']}, {table['as_of']}"
    sentence = f"Estimate: about ${lost:.2f} of ${hourly:.2f} per hour is lost this way ({machines}; {origin})."
    if verdict.main.kind.is_healthy:
        sentence = f"Estimate: the job costs about ${hourly:.2f} per hour ({machines}; {origin})."
    smaller = smaller_instance(metrics, kind, price_of) if len(types) == 1 else None
    if smaller:
        used = "GPUs, GPU memory and CPUs" if metrics.gpus else "CPUs and memory"
        sentence += f" Its {used} are less than half used: {smaller} would cost ${float(price_of[smaller]) * nodes:.2f} per hour."
    return {
        "instance_type": kind, "nodes": nodes, "per_hour": round(hourly, 4), "lost_per_hour": round(lost, 4), "prices": origin,
        "smaller_instance": smaller, "estimate": True, "sentence": sentence,
    }  # fmt: skip


def smaller_instance(metrics: JobMetrics, kind: str, price_of: Mapping[str, float]) -> str | None:
    """Return the next cheaper type of the same family if this one is less than half used in all respects."""
    used = [metrics.mean_of(metric) for metric in ("cpu", "gpu", "gpu_memory", "memory")]
    measured = [value for value in used if value is not None]
    if metrics.mean_of("cpu") is None or not measured or max(measured) > policy.HALF_EMPTY:
        return None
    family = kind.rpartition(".")[0]
    cheaper = [
        (price, name)
        for name, price in price_of.items()
        if name.rpartition(".")[0] == family and price < price_of[kind]
    ]
    return max(cheaper)[1] if cheaper else None
