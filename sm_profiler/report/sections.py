"""The sections that users of the managed service know, from the rules' report objects; plain values and pictures."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from markupsafe import Markup

from sm_profiler.report import charts
from sm_profiler.report.charts import Box, Part
from sm_profiler.report.facts import Facts
from sm_profiler.report.judges.case import duration, percent
from sm_profiler.report.svg import shorten
from sm_profiler.report.words import RULES

COLOURS = ("forward", "backward", "optimizer", "wait", "evaluation", "outside", "between")
MAX_ROWS = 24  # rows of a table of data, pictures of one kind: more are counted, not shown
Object = Mapping[str, Any]


@attrs.frozen
class Table:
    """Head, rows, and how many rows were left out."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    more: int = 0
    caption: str = ""


@attrs.frozen
class Picture:
    """A drawing with a caption, and its legend: (name, colour, value)."""

    drawing: Markup
    caption: str
    legend: tuple[tuple[str, str, str], ...] = ()
    shape: str = "chart"


@attrs.frozen
class Section:
    """One section: sentences, tables, pictures, what to do."""

    key: str
    title: str
    sentences: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()
    advice: str = ""
    fired: bool = False
    missing: str = ""


def _details(rules: Mapping[str, Object], rule: str) -> dict[str, Any]:
    found = rules.get(rule, {}).get("Details")
    return dict(found) if isinstance(found, Mapping) else {}


def _fired(rules: Mapping[str, Object], rule: str) -> int:
    return int(rules.get(rule, {}).get("RuleTriggered", 0))


def _moment(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
    except (OverflowError, OSError, ValueError):
        return "unknown"


def _shares(values: Mapping[str, Any], title: str) -> Picture | None:
    """A ring of shares with its legend; small ones beyond the sixth are summed up."""
    pairs = sorted(((str(name), _float(value)) for name, value in values.items()), key=lambda pair: -pair[1])
    pairs = [pair for pair in pairs if pair[1] > 0]
    if not pairs:
        return None
    shown, rest = pairs[:6], sum(value for _, value in pairs[6:])
    if rest:
        shown.append((f"{len(pairs) - 6} others", rest))
    parts = [Part(_readable(name), value, COLOURS[number % len(COLOURS)]) for number, (name, value) in enumerate(shown)]
    whole = sum(part.value for part in parts)
    legend = tuple((shorten(part.name, 48), part.colour, f"{100 * part.value / whole:.1f} %") for part in parts)
    return Picture(charts.donut(parts, title), title, legend, "donut")


def _readable(name: str) -> str:
    names = {
        "Step:ModeKeys.TRAIN": "Training steps",
        "Step:ModeKeys.EVAL": "Evaluation steps",
        "others": "Outside the steps",
    }
    names |= {"cpu_functions": "Operators on the CPU"}
    if name.startswith("gpu_functions-dev:"):
        return f"Operators on GPU {name.rpartition(':')[2]}"
    return names.get(name, name)


def _float(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return 0.0
    return number if number == number and abs(number) != float("inf") else 0.0  # noqa: PLR0124 - NaN differs from itself


def build_sections(facts: Facts, rules: Mapping[str, Object], broken: Mapping[str, str]) -> list[Section]:
    """All sections in the order of the page."""
    return [
        summary(facts, rules), system_usage(rules), framework(rules), rule_table(rules, broken), step_durations(rules),
        gpu_use(rules), dataloading(rules), batch_size(rules), bottleneck(rules, "CPUBottleneck", "CPU bottlenecks", "cpu"),
        bottleneck(rules, "IOBottleneck", "I/O bottlenecks", "io"), gpu_memory(rules),
    ]  # fmt: skip


def summary(facts: Facts, rules: Mapping[str, Object]) -> Section:
    """Start, end, loop, initialization, finalization."""
    found = _details(rules, "MaxInitializationTime")
    start, end = _float(found.get("job_start", facts.start)), _float(found.get("job_end", facts.end))
    whole = end - start
    if whole <= 0:
        return Section("summary", "Training job summary", missing="No system metrics and no steps were recorded.")
    rows = [("Start", _moment(start)), ("End", _moment(end)), ("Duration", duration(whole))]
    steps = found.get("step_num") or {}
    first, last = _float(steps.get("first")) / 1e6, _float(steps.get("last")) / 1e6
    if facts.loop:
        first, last = facts.loop
    if not first or last < first:
        note = "Initialization and training loop cannot be told apart: no training steps were recorded."
        return Section("summary", "Training job summary", (note,), (Table(("", ""), tuple(rows)),))
    before, loop, after = max(first - start, 0.0), last - first, max(end - last, 0.0)
    rows += [
        ("Training loop start", _moment(first)), ("Training loop end", _moment(last)),
        ("Training loop", f"{duration(loop)} ({percent(loop / whole)})"),
        ("Initialization", f"{duration(before)} ({percent(before / whole)})"),
        ("Finalization", f"{duration(after)} ({percent(after / whole)})"),
    ]  # fmt: skip
    parts = {"Training loop": loop, "Initialization": before, "Finalization": after}
    picture = _shares(parts, "Where the job's time went")
    sentences = (
        () if not _fired(rules, "MaxInitializationTime") else ("Initialization took longer than the rule allows.",)
    )
    return Section(
        "summary", "Training job summary", sentences, (Table(("", ""), tuple(rows)),), (picture,) if picture else (),
        RULES["MaxInitializationTime"][1] if sentences else "", bool(sentences),
    )  # fmt: skip


def system_usage(rules: Mapping[str, Object]) -> Section:
    """The table of max, p99, p95, p50 and min for each node and metric."""
    found = _details(rules, "OverallSystemUsage")
    units = {"Network": "bytes/s"}
    rows, sentences = [], []
    nodes = sorted(
        {node for by_node in found.values() if isinstance(by_node, Mapping) for node in by_node}, key=_natural
    )
    for node in nodes:
        for metric, by_node in found.items():
            stats = by_node.get(node) if isinstance(by_node, Mapping) else None
            if isinstance(stats, Mapping):
                rows.append(
                    (
                        node,
                        metric,
                        units.get(metric, "percent"),
                        *(_plain(stats.get(key)) for key in ("max", "p99", "p95", "p50", "min")),
                    )
                )
        gpu, cpu = (found.get(metric, {}).get(node, {}) for metric in ("GPU", "CPU"))
        words = [
            f"{name} use {_plain(stats.get('p50'))} % (95th percentile {_plain(stats.get('p95'))} %)"
            for name, stats in (("CPU", cpu), ("GPU", gpu))
            if stats
        ]
        if words and len(sentences) < 8:  # noqa: PLR2004 - more sentences than that nobody reads; the table has them all
            sentences.append(f"{node}: median {' and '.join(words)}.")
    if not rows:
        return Section("system", "System usage statistics", missing="No system metrics were recorded.")
    head = ("Node", "Metric", "Unit", "Max", "p99", "p95", "p50", "Min")
    return Section("system", "System usage statistics", tuple(sentences), (_table(head, rows, 12 * MAX_ROWS),))


def framework(rules: Mapping[str, Object]) -> Section:
    """Shares of modes, passes, operators."""
    found = _details(rules, "OverallFrameworkMetrics")
    titles = {
        "phase": "Training, evaluation, others", "forward_backward": "Forward and backward pass",
        "ratio": "Operators on CPU and GPU", "general": "General operations", "horovod": "Horovod",
    }  # fmt: skip
    pictures = [_shares(found[key], title) for key, title in titles.items() if isinstance(found.get(key), Mapping)]
    tables = []
    for key, title in (("CPU", "Operators on the CPU"), ("GPU", "Operators on the GPU")):
        shares, totals = found.get(key), found.get(f"{key}_total")
        if isinstance(shares, Mapping) and shares:
            totals = totals if isinstance(totals, Mapping) else {}
            order = sorted(shares, key=lambda name, of=shares: -_float(of[name]))
            rows = [
                (shorten(str(name), 90), f"{_float(shares[name]):.1f} %", duration(_float(totals.get(name)) / 1e6))
                for name in order
            ]
            tables.append(_table((title, "Share", "Time in all"), rows))
    kept = tuple(picture for picture in pictures if picture)
    if not kept:
        why = "No framework data were recorded: start the script with `sm-profiler run`, or set SM_PROFILER_AUTO=1."
        return Section("framework", "Framework metrics summary", missing=why)
    return Section("framework", "Framework metrics summary", (), tuple(tables), kept)


def rule_table(rules: Mapping[str, Object], broken: Mapping[str, str]) -> Section:
    """All rules, most triggered first."""
    rows = []
    for rule in sorted(rules, key=lambda name: (-_fired(rules, name), name)):
        found = rules[rule]
        what, advice = RULES.get(rule, ("A rule of your own.", ""))
        fired = _fired(rules, rule)
        why_not = _details(rules, rule).get("not_evaluated")
        state = str(fired) if not why_not else f"not judged: {shorten(str(why_not), 160)}"
        settings = ", ".join(
            shorten(line, 60).replace(":", " ") for line in str(found.get("RuleParameters", "")).splitlines()
        )
        rows.append((rule, what, advice if fired else "", state, _plain(found.get("Datapoints", 0)), settings))
    rows += [(rule, "The rule itself failed.", shorten(why, 160), "error", "", "") for rule, why in broken.items()]
    head = ("Rule", "Looks for", "Recommendation", "Times triggered", "Data points", "Parameters")
    fired_rules = [rule for rule in rules if _fired(rules, rule)]
    note = f"{len(fired_rules)} of {len(rules)} rules fired." if rules else "No rule ran."
    return Section("rules", "Rules summary", (note,), (_table(head, rows, 100),), fired=bool(fired_rules))


def step_durations(rules: Mapping[str, Object]) -> Section:
    """Statistics and a histogram for each process and phase."""
    key, title = "steps", "Step duration analysis"
    found = _details(rules, "StepOutlier")
    entries = [(str(node), one) for node, one in _flat(found.get("step_details"))]
    if not entries:
        return Section(
            key,
            title,
            missing="Too few training steps were recorded to judge their durations (more than 100 are needed).",
        )
    rows, pictures, total = [], [], 0
    for node, one in entries:
        stats = one.get("step_stats", {})
        outliers = int(_float(one.get("number_of_outliers")))
        total += outliers
        rows.append(
            (
                node,
                _readable(str(one.get("phase", ""))),
                *(_seconds(stats.get(name)) for name in ("mean", "max", "p99", "p95", "p50", "min")),
                str(outliers),
            )
        )
        if len(pictures) < 4:  # noqa: PLR2004 - four histograms show what there is to see
            name = f"Step durations of {shorten(node, 40)}, seconds"
            drawn = charts.histogram(_list(one.get("probs")), _list(one.get("binedges")), name, "seconds")
            if drawn:
                pictures.append(Picture(drawn, name))
    deviations = _parameter(rules, "StepOutlier", "stddev", "3")
    sentence = f"{total} steps lie more than {deviations} standard deviations above the mean of their kind."
    ran = _what_ran(found, "What ran inside the outliers")
    head = ("Process", "Phase", "Mean", "Max", "p99", "p95", "p50", "Min", "Outliers")
    fired = bool(_fired(rules, "StepOutlier"))
    return Section(
        key,
        title,
        (sentence,),
        (_table(head, rows),),
        (*pictures, *ran),
        RULES["StepOutlier"][1] if fired else "",
        fired,
    )


def gpu_use(rules: Mapping[str, Object]) -> Section:
    """Box plot of each firing node, workload histogram of all."""
    key, title = "gpu", "GPU utilization analysis"
    low, balance = _details(rules, "LowGPUUtilization"), _details(rules, "LoadBalancing")
    workloads = {
        node: one["workloads"] for node, one in balance.items() if isinstance(one, Mapping) and one.get("workloads")
    }
    nodes = {node: one for node, one in low.items() if isinstance(one, Mapping) and one}
    nodes.pop("not_evaluated", None)
    if not workloads and not nodes:
        return Section(key, title, missing="No GPU metrics were recorded.")
    p95, p5 = (_float(_parameter(rules, "LowGPUUtilization", name, "0")) for name in ("threshold_p95", "threshold_p5"))
    sentences, pictures = [], []
    for node, gpus in list(nodes.items())[:4]:
        pictures += _box_picture(node, gpus, f"GPU use on {node}")
        for name, one in gpus.items():
            if not isinstance(one, Mapping) or len(sentences) >= MAX_ROWS:
                continue
            at95, at5 = _float(one.get("gpu_95")), _float(one.get("gpu_5"))
            if at95 < p95:
                sentences.append(
                    f"{name} on {node} is under-used: its 95th percentile is {at95:.0f} %, its maximum {_float(one.get('gpu_max')):.0f} %."
                )
            elif at5 < p5:
                sentences.append(
                    f"{name} on {node} fluctuates: between {at5:.0f} % (5th percentile) and {at95:.0f} % (95th)."
                )
    for node, gpus in list(workloads.items())[:4]:
        series = [(str(name), _list(counts)) for name, counts in list(gpus.items())[:16]]
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
                f"{first} and {second} of {node} are loaded differently (distance {_float(value):.2f})."
                for second, value in others.items()
            ][: MAX_ROWS - len(sentences)]
    more = len(nodes) + len(workloads) - len(list(nodes)[:4]) - len(list(workloads)[:4])
    if more:
        sentences.append(f"{more} more pictures of other nodes are not drawn; the rule results have their numbers.")
    fired = bool(_fired(rules, "LowGPUUtilization") or _fired(rules, "LoadBalancing"))
    advice = " ".join(RULES[rule][1] for rule in ("LowGPUUtilization", "LoadBalancing") if _fired(rules, rule))
    return Section(key, title, tuple(sentences), (), tuple(pictures), advice, fired)


def dataloading(rules: Mapping[str, Object]) -> Section:
    """Loader processes against cores, settings, histogram of times."""
    key, title = "loader", "Dataloading analysis"
    found = _details(rules, "Dataloader")
    if not found.get("cores"):
        why = (
            found.get("not_evaluated")
            or "No dataloader events were recorded: they need a dataloader window in the configuration."
        )
        return Section(key, title, missing=str(why))
    cores, loaders = _plain(found.get("cores")), _plain(found.get("dataloaders"))
    sentences = [f"{loaders} data loading processes ran on {cores} CPU cores."]
    if found.get("num_workers") is not None:
        sentences.append(f"num_workers is {_plain(found['num_workers'])}.")
    if found.get("pin_memory") is False:
        sentences.append("pin_memory is off; with a GPU, pin_memory=True lets copies overlap with computing.")
    if found.get("prefetch") is False:
        sentences.append("No prefetching was seen: add it to the input pipeline.")
    times = found.get("dataloading_time") or {}
    drawn = charts.histogram(
        _list(times.get("probs")),
        _list(times.get("binedges")),
        "Time to load a batch, seconds",
        "seconds",
        colour="wait",
    )
    pictures = (Picture(drawn, "Time to load a batch"),) if drawn else ()
    fired = bool(_fired(rules, "Dataloader"))
    return Section(key, title, tuple(sentences), (), pictures, RULES["Dataloader"][1] if fired else "", fired)


def batch_size(rules: Mapping[str, Object]) -> Section:
    """Box plot of CPU, GPU and GPU memory of each node that has room."""
    key, title = "batch", "Batch size"
    found = {node: one for node, one in _details(rules, "BatchSize").items() if isinstance(one, Mapping) and one}
    pictures = [
        picture
        for node, one in list(found.items())[:4]
        for picture in _box_picture(node, one, f"CPU, GPU and GPU memory on {node}")
    ]
    if not pictures:
        return Section(
            key,
            title,
            (
                "CPU, GPUs and GPU memory are used well enough, or there is no GPU: nothing to say about the batch size.",
            ),
        )
    sentence = f"On {len(found)} node{'s' * (len(found) > 1)} CPU, GPU and GPU memory all have room left."
    return Section(key, title, (sentence,), (), tuple(pictures), RULES["BatchSize"][1], fired=True)


def bottleneck(rules: Mapping[str, Object], rule: str, title: str, key: str) -> Section:
    """Share of the moments, and what ran in them."""
    found, result = _details(rules, rule), rules.get(rule, {})
    points = int(_float(result.get("Datapoints")))
    if not points:
        return Section(key, title, missing="No system metrics were recorded.")
    hits, low = int(_float(result.get("Violations"))), int(_float(found.get("low_gpu_utilization")))
    what = "saturated CPU cores" if rule == "CPUBottleneck" else "cores waiting for the disk"
    limit = _parameter(rules, rule, "threshold", "50")
    share = hits / points
    sentences = (
        f"In {percent(share)} of {points} moments GPUs idled beside {what}; the rule fires above {limit} %.",
    )  # fmt: skip
    pictures = (
        [
            _shares(
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
    pictures += _what_ran(found, "What ran at these moments")
    fired = bool(_fired(rules, rule))
    kept = tuple(picture for picture in pictures if picture)
    return Section(key, title, sentences, (), kept, RULES[rule][1] if fired else "", fired)


def gpu_memory(rules: Mapping[str, Object]) -> Section:
    """Box plot and jumps of each node that grew."""
    key, title = "memory", "GPU memory"
    found = {
        node: one for node, one in _details(rules, "GPUMemoryIncrease").items() if isinstance(one, Mapping) and one
    }
    found.pop("not_evaluated", None)
    if not found:
        return Section(key, title, ("No jump in GPU memory was seen.",))
    sentences, pictures = [], []
    for node, gpus in list(found.items())[:4]:
        pictures += _box_picture(node, gpus, f"GPU memory on {node}")
        sentences += [
            f"{name} on {node} rose by {_float(one.get('increase')):.1f} percent points between two stretches; its maximum is {_float(one.get('gpu_max')):.0f} %."
            for name, one in gpus.items() if isinstance(one, Mapping)
        ][:MAX_ROWS]  # fmt: skip
    return Section(key, title, tuple(sentences), (), tuple(pictures), RULES["GPUMemoryIncrease"][1], fired=True)


def _what_ran(found: Mapping[str, Any], title: str) -> list[Picture]:
    kinds = {"phase": "phases", "general": "operations", "CPU": "CPU operators", "GPU": "GPU operators"}
    pictures = [
        _shares(found[key], f"{title}: {name}") for key, name in kinds.items() if isinstance(found.get(key), Mapping)
    ]
    return [picture for picture in pictures if picture]


def _box_picture(node: str, rows: Mapping[str, Any], caption: str) -> list[Picture]:
    made = [
        Box(str(name), *(_float(one.get(key)) for key in ("p25", "p50", "p75", "lower", "upper")))
        for name, one in rows.items() if isinstance(one, Mapping) and "p50" in one
    ]  # fmt: skip
    if not made:
        return []
    note = f" (first {MAX_ROWS} of {len(made)})" if len(made) > MAX_ROWS else ""
    return [Picture(charts.boxes(made[:MAX_ROWS], shorten(caption, 80)), shorten(caption, 80) + note)]


def _flat(found: Any) -> list[tuple[str, Mapping[str, Any]]]:
    """step_details is node → entry in the service's form, node → phase → entry in ours."""
    flat: list[tuple[str, Mapping[str, Any]]] = []
    for node, one in (found or {}).items():
        if not isinstance(one, Mapping):
            continue
        if "step_stats" in one:
            flat.append((node, one))
        else:
            flat += [(node, inner) for inner in one.values() if isinstance(inner, Mapping) and "step_stats" in inner]
    return flat


def _parameter(rules: Mapping[str, Object], rule: str, name: str, default: str) -> str:
    for line in str(rules.get(rule, {}).get("RuleParameters", "")).splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return value
    return default


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], limit: int = MAX_ROWS) -> Table:
    return Table(head, tuple(tuple(rows)[:limit]), max(len(rows) - limit, 0))


def _list(found: Any) -> list[float]:
    return [_float(value) for value in found] if isinstance(found, Sequence) and not isinstance(found, str) else []


def _seconds(value: Any) -> str:
    return f"{_float(value):.4g} s"


def _plain(value: Any) -> str:
    number = _float(value)
    return f"{number:,.2f}".rstrip("0").rstrip(".") if number else "0"


def _natural(name: str) -> tuple[object, ...]:
    head, _, tail = str(name).rpartition("-")
    return (head, int(tail)) if tail.isdigit() else (str(name), 0)
