"""The sections about the training loop: steps, GPUs, loading, batch size, bottlenecks, GPU memory."""

from __future__ import annotations

from collections.abc import Mapping

from sm_profiler.report import charts
from sm_profiler.report.judges.judge_context import percent
from sm_profiler.report.labels import RULES
from sm_profiler.report.section_parts import (
    MAX_ROWS,
    Object,
    Picture,
    Section,
    box_picture,
    cut_table,
    details,
    not_judged,
    number,
    numbers,
    parameter,
    plain,
    readable,
    shares,
    spoken,
    step_entries,
    times_fired,
    what_ran,
)
from sm_profiler.report.svg import shorten


def step_durations(rules: Mapping[str, Object]) -> Section:
    """Statistics and a histogram for each process and phase."""
    key, title = "steps", "Step duration analysis"
    found = details(rules, "StepOutlier")
    entries = [(str(node), one) for node, one in step_entries(found.get("step_details"))]
    if not entries:
        return Section(
            key,
            title,
            missing="Too few training steps were recorded to judge their durations (more than 100 are needed).",
        )
    rows: list[tuple[str, ...]] = []
    pictures: list[Picture] = []
    total = 0
    for node, one in entries:
        stats = one.get("step_stats", {})
        outliers = int(number(one.get("number_of_outliers")))
        total += outliers
        rows.append(
            (
                node,
                readable(str(one.get("phase", ""))),
                *(spoken(stats.get(name)) for name in ("mean", "max", "p99", "p95", "p50", "min")),
                str(outliers),
            )
        )
        if len(pictures) < 4:  # noqa: PLR2004 - what the number means stands in the line
            edges = numbers(one.get("binedges"))
            unit, scale = ("ms", 1e3) if max(edges, default=0.0) < 1 else ("seconds", 1.0)
            name = f"Step durations of {shorten(node, 40)} without waiting, {unit}"
            drawn = charts.histogram(numbers(one.get("probs")), [edge * scale for edge in edges], name, unit)
            if drawn:
                pictures.append(Picture(drawn, name))
    deviations = parameter(rules, "StepOutlier", "stddev", "3")
    sentence = (
        "The time of a step from the start of its forward pass to the end of the optimizer, without waiting for data. "
        f"{total} step{' lies' if total == 1 else 's lie'} more than {deviations} standard deviations above the mean of their kind."
    )
    ran = what_ran(found, "What ran inside the outliers")
    head = ("Process", "Phase", "Mean", "Max", "p99", "p95", "p50", "Min", "Outliers")
    fired = bool(times_fired(rules, "StepOutlier"))
    return Section(
        key,
        title,
        (sentence,),
        (cut_table(head, rows),),
        (*pictures, *ran),
        RULES["StepOutlier"][1] if fired else "",
        fired,
    )


def gpu_use(rules: Mapping[str, Object]) -> Section:  # noqa: C901 - one sentence or picture after another
    """Box plot of each firing node, workload histogram of all."""
    key, title = "gpu", "GPU utilization analysis"
    low, balance = details(rules, "LowGPUUtilization"), details(rules, "LoadBalancing")
    workloads = {
        node: one["workloads"] for node, one in balance.items() if isinstance(one, Mapping) and one.get("workloads")
    }
    nodes = {node: one for node, one in low.items() if isinstance(one, Mapping) and one}
    if not workloads and not nodes:
        return not_judged(key, title, low.get("not_evaluated") or balance.get("not_evaluated") or "no GPU metrics")
    p95, p5 = (number(parameter(rules, "LowGPUUtilization", name, "0")) for name in ("threshold_p95", "threshold_p5"))
    sentences: list[str] = []
    pictures: list[Picture] = []
    for node, gpus in list(nodes.items())[:4]:
        pictures += box_picture(gpus, f"GPU use on {node}")
        for name, one in gpus.items():
            if not isinstance(one, Mapping) or len(sentences) >= MAX_ROWS:
                continue
            at95, at5 = number(one.get("gpu_95")), number(one.get("gpu_5"))
            if at95 < p95:
                sentences.append(
                    f"{name} on {node} is under-used: its 95th percentile is {at95:.0f} %, its maximum {number(one.get('gpu_max')):.0f} %."
                )
            elif at5 < p5:
                sentences.append(
                    f"{name} on {node} fluctuates: between {at5:.0f} % (5th percentile) and {at95:.0f} % (95th)."
                )
    for node, gpus in list(workloads.items())[:4]:
        series = [(str(name), numbers(counts)) for name, counts in list(gpus.items())[:16]]
        drawn = charts.workload(series, f"How often each GPU of {node} was how busy")
        legend = tuple(
            (name, charts.SERIES[number % len(charts.SERIES)], "") for number, (name, _) in enumerate(series)
        )
        if drawn:
            pictures.append(Picture(drawn, f"Workload of the GPUs of {node}", legend))
        if len(gpus) == 1:
            sentences.append(f"{node} has a single GPU: there is nothing to balance.")
    for node, one in balance.items():
        for first, others in (one.get("distances", {}) if isinstance(one, Mapping) else {}).items():
            sentences += [
                f"{first} and {second} of {node} are loaded differently (distance {number(value):.2f})."
                for second, value in others.items()
            ][: MAX_ROWS - len(sentences)]
    more = len(nodes) + len(workloads) - len(list(nodes)[:4]) - len(list(workloads)[:4])
    if more:
        sentences.append(f"{more} more pictures of other nodes are not drawn; the rule results have their numbers.")
    fired = bool(times_fired(rules, "LowGPUUtilization") or times_fired(rules, "LoadBalancing"))
    advice = " ".join(RULES[rule][1] for rule in ("LowGPUUtilization", "LoadBalancing") if times_fired(rules, rule))
    return Section(key, title, tuple(sentences), (), tuple(pictures), advice, fired)


def dataloading(rules: Mapping[str, Object]) -> Section:
    """Loader processes against cores, settings, histogram of times."""
    key, title = "loader", "Dataloading analysis"
    found = details(rules, "Dataloader")
    if not found.get("cores"):
        why = "no dataloader events were recorded: they need a dataloader window in the configuration"
        return not_judged(key, title, found.get("not_evaluated") or why)
    cores, loaders = plain(found.get("cores")), plain(found.get("dataloaders"))
    one_process, one_core = loaders == "1", cores == "1"
    sentences = [
        f"{loaders} data loading process{'' if one_process else 'es'} ran on {cores} CPU core{'' if one_core else 's'}."
    ]
    if found.get("num_workers") is not None:
        sentences.append(f"num_workers is {plain(found['num_workers'])}.")
    if found.get("pin_memory") is False:
        sentences.append("pin_memory is off; with a GPU, pin_memory=True lets copies overlap with computing.")
    if found.get("prefetch") is False:
        sentences.append("No prefetching was seen: add it to the input pipeline.")
    times = found.get("dataloading_time") or {}
    drawn = charts.histogram(
        numbers(times.get("probs")),
        numbers(times.get("binedges")),
        "Time to load a batch, seconds",
        "seconds",
        colour="wait",
    )
    pictures = (Picture(drawn, "Time to load a batch"),) if drawn else ()
    fired = bool(times_fired(rules, "Dataloader"))
    return Section(key, title, tuple(sentences), (), pictures, RULES["Dataloader"][1] if fired else "", fired)


def batch_size(rules: Mapping[str, Object]) -> Section:
    """Box plot of CPU, GPU and GPU memory of each node that has room."""
    key, title = "batch", "Batch size"
    found = {node: one for node, one in details(rules, "BatchSize").items() if isinstance(one, Mapping) and one}
    pictures = [
        picture
        for node, one in list(found.items())[:4]
        for picture in box_picture(one, f"CPU, GPU and GPU memory on {node}")
    ]
    why = details(rules, "BatchSize").get("not_evaluated")
    if not pictures and why:
        return not_judged(key, title, why)
    if not pictures:
        good = "CPU, GPUs and GPU memory are used well enough: nothing to say about the batch size."
        return Section(key, title, (good,))
    sentence = f"On {len(found)} node{'s' * (len(found) > 1)} CPU, GPU and GPU memory all have room left."
    return Section(key, title, (sentence,), (), tuple(pictures), RULES["BatchSize"][1], fired=True)


def bottleneck(rules: Mapping[str, Object], rule: str, title: str, key: str) -> Section:
    """Share of the moments, and what ran in them."""
    found, result = details(rules, rule), rules.get(rule, {})
    points = int(number(result.get("Datapoints")))
    if found.get("not_evaluated"):
        return not_judged(key, title, found["not_evaluated"])
    if not points:
        return Section(key, title, missing="No system metrics were recorded.")
    hits, low = int(number(result.get("Violations"))), int(number(found.get("low_gpu_utilization")))
    what = "saturated CPU cores" if rule == "CPUBottleneck" else "cores waiting for the disk"
    limit = parameter(rules, rule, "threshold", "50")
    share = hits / points
    sentences = (
        f"In {percent(share)} of {points} moments GPUs idled beside {what}; the rule fires above {limit} %.",
    )  # fmt: skip
    pictures = (
        [
            shares(
                {
                    "Above the threshold": max(points - low, 0),
                    "Low for another reason": max(low - hits, 0),
                    f"Low beside {what}": hits,
                },
                "GPU use",
            )
        ]
        if low
        else []
    )
    pictures += what_ran(found, "What ran at these moments")
    fired = bool(times_fired(rules, rule))
    kept = tuple(picture for picture in pictures if picture)
    return Section(key, title, sentences, (), kept, RULES[rule][1] if fired else "", fired)


def gpu_memory(rules: Mapping[str, Object]) -> Section:
    """Box plot and jumps of each node that grew."""
    key, title = "memory", "GPU memory"
    found = {node: one for node, one in details(rules, "GPUMemoryIncrease").items() if isinstance(one, Mapping) and one}
    if not found:
        why = details(rules, "GPUMemoryIncrease").get("not_evaluated")
        return not_judged(key, title, why) if why else Section(key, title, ("No jump in GPU memory was seen.",))
    sentences: list[str] = []
    pictures: list[Picture] = []
    for node, gpus in list(found.items())[:4]:
        pictures += box_picture(gpus, f"GPU memory on {node}")
        sentences += [
            f"{name} on {node} rose by {number(one.get('increase')):.1f} percent points between two stretches; its maximum is {number(one.get('gpu_max')):.0f} %."
            for name, one in gpus.items() if isinstance(one, Mapping)
        ][:MAX_ROWS]  # fmt: skip
    return Section(key, title, tuple(sentences), (), tuple(pictures), RULES["GPUMemoryIncrease"][1], fired=True)
