"""The first screen: verdict card, picture of the evidence, job at a glance; values ready to print."""

from __future__ import annotations

import math
from typing import Any

from sm_profiler.report import charts, labels
from sm_profiler.report.charts import Part
from sm_profiler.report.classes import Class
from sm_profiler.report.job_metrics import Facts, Rank
from sm_profiler.report.judges.judge_context import duration, mean_or_none, percent, size
from sm_profiler.report.model import Evidence, Finding, Report
from sm_profiler.report.section_parts import Picture
from sm_profiler.report.slices import loop_slices
from sm_profiler.report.svg import shorten

MAX_RANKS = 12  # bars of single ranks on the first screen


def shown(evidence: Evidence, value: float | str | None) -> str:
    """A value of an evidence in its unit."""
    if value is None or isinstance(value, str):
        return value or ""
    if evidence.unit == "share":
        return percent(float(value))
    if evidence.unit == "percent":
        return f"{value:.1f} %".replace(".0 %", " %")
    if evidence.unit in ("s", "ms"):
        return duration(float(value) / (1e3 if evidence.unit == "ms" else 1))
    if evidence.unit.startswith("bytes"):
        return size(float(value)) + evidence.unit.removeprefix("bytes")
    return f"{value:,.0f}" if float(value) == int(value) else f"{value:,.1f}"


def finding_view(finding: Finding) -> dict[str, Any]:
    """A finding as the page shows it."""
    return {
        "code": finding.kind.value,
        "name": labels.NAMES[finding.kind],
        "headline": finding.headline,
        "next": finding.next_step,
        "confidence": finding.confidence,
        "healthy": finding.kind.is_healthy,
        "open": finding.kind is Class.INCONCLUSIVE,
        "evidence": [
            {
                "metric": one.metric,
                "value": shown(one, one.value),
                "threshold": f"{one.held} {shown(one, one.threshold)}" if one.threshold is not None else "",
                "where": shorten(one.where, 40),
            }
            for one in finding.evidence
        ],
    }


def loop_bar(ranks: tuple[Rank, ...], title: str) -> Picture | None:
    """Where the loop's time goes, averaged over ranks."""
    slices = loop_slices(ranks)
    if not slices:
        return None
    parts = [Part(one.label, one.share, labels.SLICES[one.key][1], one.note) for one in slices]
    legend = tuple((one.label, labels.SLICES[one.key][1], f"{one.value}|{one.note}") for one in slices if one.is_named)
    return Picture(charts.bar(parts, title), title, legend, "bar")


def pictures(report: Report) -> list[Picture]:
    """The evidence as pictures: first where the time goes, then what belongs to the verdict's class."""
    facts, kind = report.facts, report.verdict.kind
    drawn = [picture for picture in (loop_bar(facts.ranks, "Where the training loop's time goes"),) if picture]
    special = {
        Class.STRAGGLER: _rank_bars, Class.PERIODIC_STALL: _strip, Class.STEP_OUTLIERS: _strip, Class.INITIALIZATION_BOUND: _job_bar,
        Class.MEMORY_GROWTH: _memory,
    }  # fmt: skip
    extra = special[kind](facts) if kind in special else []
    if not drawn:
        extra = _usage(facts)
    elif kind in (Class.UNBALANCED_GPUS, Class.HOST_BOUND, Class.COMPUTE_BOUND) or (
        kind is Class.INPUT_BOUND and facts.gpus
    ):
        extra = _gpus(facts)
    return extra + drawn if kind is Class.INITIALIZATION_BOUND else drawn + extra


def _rank_bars(facts: Facts) -> list[Picture]:
    return [
        Picture(one.drawing, shorten(rank.name, 40), (), "bar thin")
        for rank in facts.ranks[:MAX_RANKS]
        if (one := loop_bar((rank,), f"Where the time of {rank.name} goes"))
    ]


def _strip(facts: Facts) -> list[Picture]:
    """The steps in order; of a long job with a period a stretch in which single steps can be told apart."""
    rank = max(facts.ranks, key=lambda one: one.stall_share)
    lengths, long = rank.turns.length, rank.stalls.long
    first, last = 0, len(lengths)
    if rank.stalls.period and last > charts.STRIP_BARS:
        first = (last - charts.STRIP_BARS) // 2
        last = first + charts.STRIP_BARS
    part = f"steps {first:,} to {last:,} of {len(lengths):,}" if first else "every step"
    title = f"{part[0].upper()}{part[1:]} in order, long ones marked ({shorten(rank.name, 40)}, up to {duration(float(lengths[first:last].max()))})"
    return [
        Picture(charts.turns_strip(lengths[first:last].tolist(), long[first:last].tolist(), title), title, (), "strip")
    ]


def _job_bar(facts: Facts) -> list[Picture]:
    if not facts.loop:
        return []
    before, loop, after = (
        facts.initialization or 0.0,
        facts.loop[1] - facts.loop[0],
        max(facts.end - facts.loop[1], 0.0),
    )
    parts = [
        Part("Before the first step", before, "outside"),
        Part("Training loop", loop, "forward"),
        Part("After the loop", after, "between"),
    ]
    legend = tuple(
        (part.name, part.colour, f"{percent(part.value / facts.duration)}|{duration(part.value)}") for part in parts
    )
    return [Picture(charts.bar(parts, "Where the job's time goes"), "Where the job's time goes", legend, "bar")]


def _memory(facts: Facts) -> list[Picture]:
    for metric, title in (("gpu_memory", "GPU memory over time"), ("memory", "Memory over time")):
        if metric == "gpu_memory" and facts.memory:
            name, (seconds, values) = max(
                facts.memory.items(), key=lambda item: float(item[1][1].max()) if len(item[1][1]) else 0.0
            )
            if len(seconds) > 1:
                every = max(len(seconds) // 500, 1)
                label = f"Resident memory of {shorten(name, 40)} (up to {size(float(values.max()))})"
                return [
                    Picture(charts.line(seconds[::every].tolist(), values[::every].tolist(), label), label, (), "strip")
                ]
        for data in facts.system.of(metric).values():
            rows = data.count > 0
            if rows.sum() > 1:
                return [
                    Picture(
                        charts.line(data.seconds[rows].tolist(), data.mean[rows].tolist(), title), title, (), "strip"
                    )
                ]
    return []


def _usage(facts: Facts) -> list[Picture]:
    """Mean use of each resource, for a job without steps."""
    drawn = []
    for metric, title, colour in (
        ("gpu", "GPU", "forward"),
        ("cpu", "CPU", "optimizer"),
        ("memory", "Memory", "evaluation"),
    ):
        mean = facts.mean_of(metric)
        if mean is not None:
            label = f"{title}: {mean:.0f} % used on average"
            drawn.append(
                Picture(
                    charts.bar([Part("used", mean, colour), Part("free", 100 - mean, "none")], label),
                    label,
                    (),
                    "bar thin",
                )
            )
    return drawn


def _gpus(facts: Facts) -> list[Picture]:
    """How busy each GPU is; their average where they are many."""
    rows = [(f"{gpu.node} {gpu.name}", gpu.mean) for gpu in facts.gpus if math.isfinite(gpu.mean)]
    if len(rows) > MAX_RANKS:
        rows = [("busiest GPU", max(mean for _, mean in rows)), ("laziest GPU", min(mean for _, mean in rows))]
    return [
        Picture(
            charts.bar([Part("busy", mean, "forward"), Part("idle", 100 - mean, "none")], f"{name}: {mean:.0f} % busy"),
            f"{shorten(name, 30)}: {mean:.0f} % busy",
            (),
            "bar thin",
        )
        for name, mean in rows
    ]


def glance(report: Report) -> list[tuple[str, str, str]]:
    """Tiles: label, value, note."""
    facts = report.facts
    tiles = [
        (
            "Duration",
            duration(facts.duration) if facts.duration else "unknown",
            "still running" if facts.running else "",
        )
    ]
    speed = facts.steps_per_second
    if speed:
        steps = sum(int(rank.train.sum()) for rank in facts.ranks[:1])
        note = f"{steps:,} steps" + (f" on each of {len(facts.ranks)} ranks" if len(facts.ranks) > 1 else "")
        tiles.append(("Training speed", f"{speed:.3g} steps/s", note))
        if facts.batch_size:
            tiles.append(
                ("Samples", f"{speed * facts.batch_size * len(facts.ranks):,.0f} /s", f"{facts.batch_size} a batch")
            )
    machines = f"{len(facts.nodes)} node{'s' * (len(facts.nodes) != 1)}"
    if facts.gpus:
        mean = mean_or_none([gpu.mean for gpu in facts.gpus])
        tiles.append(
            (
                "GPU use",
                f"{mean:.0f} %" if mean is not None else "unknown",
                f"{len(facts.gpus)} GPU{'s' * (len(facts.gpus) > 1)}, {machines}",
            )
        )
    cpu, memory = facts.mean_of("cpu"), facts.mean_of("memory")
    if cpu is not None:
        cores = sum(facts.system.cores.values())
        tiles.append(
            ("CPU use", f"{cpu:.0f} %", f"{cores} core{'s' * (cores != 1)}" + ("" if facts.gpus else f", {machines}"))
        )
    if memory is not None:
        tiles.append(("Memory", f"{memory:.0f} %", "of the node's" if len(facts.nodes) == 1 else "of the nodes'"))
    if facts.ranks:
        interrupted, down = facts.interruptions
        tiles.append(
            (
                "Interruptions",
                str(interrupted) if interrupted else "none",
                f"{duration(down)} in between" if down else "",
            )
        )
    tiles.append(
        (
            "Profiling cost",
            _overhead(facts),
            "of the loop's time" if facts.overhead is not None else "the hook recorded none",
        )
    )
    if report.cost:
        tiles.append(
            ("Lost money", f"about ${report.cost['lost_per_hour']:.2f}/h", f"estimate, {report.cost['instance_type']}")
        )
    return tiles


def _overhead(facts: Facts) -> str:
    if facts.overhead is None or not math.isfinite(facts.overhead):
        return "unknown"
    return f"{100 * facts.overhead:.2g} %"
