"""What lost time costs: a small dated table of list prices, an estimate the user can replace."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from sm_profiler.report import policy
from sm_profiler.report.job_metrics import Facts
from sm_profiler.report.model import Verdict


def built_in() -> dict[str, Any]:
    """The table that comes with the package: `{"as_of": …, "region": …, "dollars_per_hour": {type: price}}`."""
    table: dict[str, Any] = json.loads((files("sm_profiler.report") / "templates" / "prices.json").read_text("utf-8"))
    return table


def cost_of(facts: Facts, verdict: Verdict, prices: Mapping[str, float] | None = None) -> dict[str, Any] | None:
    """Cost an hour and what of it is lost; None where the instance type or its price is not known."""
    table = built_in()
    known = prices if prices is not None else table["dollars_per_hour"]
    kind = facts.instance_type
    if not kind or kind not in known:
        return None
    nodes = max(len(facts.nodes), 1)
    hourly = float(known[kind]) * nodes
    share = verdict.main.share_of_time
    if verdict.main.of == "loop" and facts.loop and facts.duration:
        share *= (facts.loop[1] - facts.loop[0]) / facts.duration
    lost = hourly * share
    origin = "your price table" if prices is not None else f"list prices of {table['region']}, {table['as_of']}"
    sentence = f"Estimate: about ${lost:.2f} of ${hourly:.2f} an hour is lost this way ({nodes} x {kind}; {origin})."
    if verdict.main.kind.is_healthy:
        sentence = f"Estimate: the job costs about ${hourly:.2f} an hour ({nodes} x {kind}; {origin})."
    smaller = smaller_instance(facts, kind, known)
    if smaller:
        parts = "GPUs, their memory and its CPUs all" if facts.gpus else "CPUs and its memory"
        sentence += f" Its {parts} have room: {smaller} would cost ${float(known[smaller]) * nodes:.2f} an hour."
    return {
        "instance_type": kind, "nodes": nodes, "per_hour": round(hourly, 4), "lost_per_hour": round(lost, 4), "prices": origin,
        "smaller_instance": smaller, "estimate": True, "sentence": sentence,
    }  # fmt: skip


def smaller_instance(facts: Facts, kind: str, known: Mapping[str, float]) -> str | None:
    """The next cheaper type of the same family, if all resources of this one stay below half (BatchSize's question)."""
    used = [facts.mean_of(metric) for metric in ("cpu", "gpu", "gpu_memory", "memory")]
    measured = [value for value in used if value is not None]
    if facts.mean_of("cpu") is None or not measured or max(measured) > policy.HALF_EMPTY.value:
        return None
    family = kind.rpartition(".")[0]
    cheaper = [
        (price, name) for name, price in known.items() if name.rpartition(".")[0] == family and price < known[kind]
    ]
    return max(cheaper)[1] if cheaper else None
