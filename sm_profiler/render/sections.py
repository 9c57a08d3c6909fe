"""The page's sections, with the headings of the managed service's report, from the rules' report objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from sm_profiler.diagnosis.classes import Class
from sm_profiler.diagnosis.ledger import Totals
from sm_profiler.diagnosis.model import Finding, Verdict
from sm_profiler.formatting import decimal, duration, milliseconds, natural_key, number, percent, plural, shorten, utc
from sm_profiler.metrics.job_metrics import JobMetrics, how_to_record
from sm_profiler.render import charts
from sm_profiler.render.blocks import (
    MAX_ROWS,
    Object,
    PageTable,
    Picture,
    Section,
    box_plots,
    by_node,
    cut_table,
    details,
    not_judged,
    numbers,
    parameter,
    readable_phase,
    share_ring,
    share_rings,
    times_fired,
    what_ran,
)
from sm_profiler.render.view import shares

OF_THE_LOOP = ("phase", "forward_backward")  # shares of OverallFrameworkMetrics that the loop's bar shows
MAX_PICTURES = 4  # of one kind in a section
MAX_LINES = 16  # in one workload chart
MAX_NODE_SENTENCES = 8
MAX_RULES = 100
MAX_OPERATOR = 140  # characters; names of TensorFlow and JAX have the layer in their middle
Rules = Mapping[str, Object]

# Questions that the verdict answers as well, by limits that depend on the job: the page shows that answer.
JUDGED = {
    "MaxInitializationTime": (Class.INITIALIZATION_BOUND,),
    "BatchSize": (Class.BATCH_TOO_SMALL,),
    "LoadBalancing": (Class.UNBALANCED_GPUS,),
    "StepOutlier": (Class.STEP_OUTLIERS, Class.PERIODIC_STALL),
    "Dataloader": (Class.INPUT_BOUND,),
    "GPUMemoryIncrease": (Class.MEMORY_GROWTH,),
}


@attrs.frozen
class RuleText:
    """Texts about a built-in rule: what it looks for, and what to do when it fires."""

    looks_for: str
    advice: str = ""


RULES = {
    "CPUBottleneck": RuleText(
        "GPUs are idle while CPU cores are saturated.",
        "Give the data loader more workers and let it prefetch; move preprocessing out of the training process.",
    ),
    "IOBottleneck": RuleText(
        "GPUs are idle while CPU cores wait for the disk.",
        "Prefetch, pack small files into binary formats, and keep the data on storage closer to the job.",
    ),
    "LowGPUUtilization": RuleText(
        "GPU use is low, or alternates between busy and idle.",
        "Find the bottleneck first; then make fewer blocking calls, or use a larger batch.",
    ),
    "GPUMemoryIncrease": RuleText(
        "GPU memory rises from one window of samples to the next.",
        "If it approaches the limit, use an instance with more GPU memory; otherwise look for tensors kept alive.",
    ),
    "BatchSize": RuleText(
        "CPU, GPU and GPU memory are all underused.",
        "Use a larger batch, or a smaller and cheaper instance.",
    ),
    "MaxInitializationTime": RuleText(
        "Too much time passes before the first training step.",
        "Stream the data instead of downloading it before the start.",
    ),
    "LoadBalancing": RuleText(
        "GPUs of one node have different loads.",
        "Use another distribution strategy; give each GPU its own process.",
    ),
    "StepOutlier": RuleText(
        "Some steps take far longer than the others.",
        "Check what coincides with them: checkpoints, logging, unusual samples, the input pipeline.",
    ),
    "Dataloader": RuleText(
        "The number of loader processes does not fit the CPU cores.",
        "Match num_workers to the cores, and use pin_memory and prefetching.",
    ),
    "OverallSystemUsage": RuleText("Statistics of the system metrics; never fires."),
    "OverallFrameworkMetrics": RuleText("Statistics of the framework metrics; never fires."),
}
CUSTOM = RuleText("A custom rule.")


@attrs.frozen
class Answers:
    """Answers to the questions of rules: the verdict's, or the rule's if the verdict has none.

    Attributes:
        rules: results of the rules.
        verdict: the verdict; None if there was nothing to judge.
    """

    rules: Rules
    verdict: Verdict | None = None

    def finding(self, rule: str) -> Finding | None:
        """Return the verdict's finding on a rule's question."""
        if self.verdict is None:
            return None
        return next(
            (finding for finding in (self.verdict.main, *self.verdict.also) if finding.kind in JUDGED[rule]), None
        )

    def fired(self, rule: str) -> bool:
        return bool(times_fired(self.rules, rule)) if self.verdict is None else self.finding(rule) is not None

    def sentence(self, rule: str, otherwise: str) -> str:
        """Return the finding's headline, or the rule's sentence."""
        finding = self.finding(rule)
        return otherwise if finding is None else finding.headline

    def advice(self, rule: str) -> str:
        """Return what to do; "" if the answer is no."""
        finding = self.finding(rule)
        return finding.next_step if finding is not None else RULES[rule].advice if self.fired(rule) else ""


def build_sections(
    metrics: JobMetrics,
    rules: Rules,
    broken: Mapping[str, str],
    verdict: Verdict | None = None,
    totals: Totals | None = None,
) -> list[Section]:
    """Return all sections in the order of the page.

    Args:
        rules: results of the rules.
        broken: rule → why it could not be evaluated.
        verdict: the report's verdict; default: the rules answer all questions.
        totals: the ledger of the loops.
    """
    answers = Answers(rules, verdict if any(rank.iterations for rank in metrics.ranks) else None)
    return [
        summary(metrics, answers), system_usage(rules), framework(metrics, rules, totals), rule_table(rules, broken), step_durations(answers),
        gpu_use(answers), dataloading(answers), batch_size(answers), bottleneck(rules, "CPUBottleneck", "CPU bottlenecks", "cpu"),
        bottleneck(rules, "IOBottleneck", "I/O bottlenecks", "io"), gpu_memory(answers),
    ]  # fmt: skip


def folded(sections: Sequence[Section]) -> list[Section]:
    """Return sections of which each is one line until it is opened, and one for all that had nothing to judge."""
    return [
        *(attrs.evolve(section, fold=True) for section in sections if not section.not_judged),
        *_not_judged(sections),
    ]


def _not_judged(sections: Sequence[Section]) -> list[Section]:
    """Return one section for all that had nothing to judge: they often have the same reason."""
    reasons: dict[str, list[str]] = {}
    for section in sections:
        if section.not_judged:
            reasons.setdefault(section.not_judged.partition(";")[0], []).append(section.title)
    sentences = tuple(f"{', '.join(titles)}: {reason}." for reason, titles in reasons.items())
    return [Section("unjudged", "Sections without data", sentences, fold=True)] if sentences else []


def _advice(rules: Rules, *names: str) -> str:
    return " ".join(RULES[name].advice for name in names if times_fired(rules, name))


def summary(metrics: JobMetrics, answers: Answers) -> Section:
    """Start, end, loop, initialization and the time after the loop, in which a job may end or hang."""
    key, title = "summary", "Training job summary"
    found = details(answers.rules, "MaxInitializationTime")
    start, end = number(found.get("job_start", metrics.start)), number(found.get("job_end", metrics.end))
    whole = end - start
    if whole <= 0:
        return Section(key, title, missing="No system metrics and no steps were recorded.")
    rows = [("Start", utc(start)), ("End", utc(end)), ("Duration", duration(whole))]
    steps = found.get("step_num") or {}
    first, last = number(steps.get("first")) / 1e6, number(steps.get("last")) / 1e6
    if metrics.loop:
        first, last = metrics.loop
    if not first or last < first:
        note = "Initialization and training loop cannot be separated: no training steps were recorded."
        return Section(key, title, (note,), (PageTable(("", ""), tuple(rows)),))
    before, loop, after = max(first - start, 0.0), last - first, max(end - last, 0.0)
    rows += [
        ("Training loop start", utc(first)), ("Training loop end", utc(last)),
        ("Training loop", f"{duration(loop)} ({percent(loop / whole)})"),
        ("Initialization", f"{duration(before)} ({percent(before / whole)})"),
        ("After the loop", f"{duration(after)} ({percent(after / whole)})"),
    ]  # fmt: skip
    shares = {"Training loop": loop, "Initialization": before, "After the loop": after}
    picture = share_ring(shares, "Where the job's time went")
    rule = "MaxInitializationTime"
    fired = answers.fired(rule)
    sentences = (answers.sentence(rule, "Initialization took longer than the rule allows."),) if fired else ()
    return Section(
        key, title, sentences, (PageTable(("", ""), tuple(rows)),), (picture,) if picture else (),
        answers.advice(rule), fired,
    )  # fmt: skip


def system_usage(rules: Rules) -> Section:
    """Table of max, p99, p95, p50 and min of each metric and node."""
    key, title = "system", "System usage statistics"
    found = {
        metric: nodes for metric, nodes in details(rules, "OverallSystemUsage").items() if isinstance(nodes, Mapping)
    }
    rows: list[tuple[str, ...]] = []
    sentences: list[str] = []
    for node in sorted({str(node) for nodes in found.values() for node in nodes}, key=natural_key):
        for metric, nodes in found.items():
            stats = nodes.get(node)
            if isinstance(stats, Mapping):
                unit = "bytes/s" if metric == "Network" else "percent"
                values = (decimal(stats.get(name)) for name in ("max", "p99", "p95", "p50", "min"))
                rows.append((node, metric, unit, *values))
        medians = [
            f"{metric} use {decimal(stats.get('p50'))} % (95th percentile {decimal(stats.get('p95'))} %)"
            for metric in ("CPU", "GPU")
            if isinstance(stats := found.get(metric, {}).get(node), Mapping) and stats
        ]
        if medians and len(sentences) < MAX_NODE_SENTENCES:
            sentences.append(f"{node}: median {' and '.join(medians)}.")
    if not rows:
        return Section(key, title, missing="No system metrics were recorded.")
    head = ("Node", "Metric", "Unit", "Max", "p99", "p95", "p50", "Min")
    return Section(key, title, tuple(sentences), (cut_table(head, rows, 12 * MAX_ROWS),))


def framework(metrics: JobMetrics, rules: Rules, totals: Totals | None = None) -> Section:
    """Shares of the loop's parts and of operators.

    The rule divides the time in another way than the verdict's bar; if there is a loop, the page shows the bar's shares
    only, so that each share has one definition.
    """
    key, title = "framework", "Framework metrics summary"
    found = details(rules, "OverallFrameworkMetrics")
    titles = {
        "phase": "Training, evaluation, others", "forward_backward": "Forward and backward pass",
        "ratio": "Operators on CPU and GPU", "general": "Recorded events by type (share of their summed time; events overlap)", "horovod": "Horovod",
    }  # fmt: skip
    slices = [each for each in shares(totals, on_device=metrics.on_device) if each.is_named]
    if slices:
        titles = {key: text for key, text in titles.items() if key not in OF_THE_LOOP}
    pictures = share_rings(found, titles)
    if not pictures and not slices:
        missing = f"No framework metrics were recorded: {how_to_record(metrics)}"
        return Section(key, title, missing=missing)
    rows = [(each.label, percent(each.share), f"{duration(each.seconds)} per step") for each in slices]
    tables = [cut_table(("Part of the training loop", "Share", "Time"), rows)] if rows else []
    for device in ("CPU", "GPU"):
        operators, sums = found.get(device), found.get(f"{device}_total")
        if isinstance(operators, Mapping) and operators:
            sums = sums if isinstance(sums, Mapping) else {}
            order = [name for _, name in sorted((-number(share), str(name)) for name, share in operators.items())]
            rows = [
                (
                    shorten(name, MAX_OPERATOR),
                    f"{number(operators.get(name)):.1f} %",
                    duration(number(sums.get(name)) / 1e6),
                )
                for name in order
            ]
            tables.append(cut_table((f"Operators on the {device}", "Share", "Total time"), rows))
    return Section(key, title, (), tuple(tables), tuple(pictures))


def rule_table(rules: Rules, broken: Mapping[str, str]) -> Section:
    """All rules, the most triggered first."""
    rows = []
    for rule in sorted(rules, key=lambda name: (-times_fired(rules, name), name)):
        found, text, fired = rules[rule], RULES.get(rule, CUSTOM), times_fired(rules, rule)
        why_not = details(rules, rule).get("not_evaluated")
        state = str(fired) if not why_not else f"not judged: {shorten(str(why_not), 160)}"
        settings = ", ".join(
            shorten(line, 60).replace(":", " ") for line in str(found.get("RuleParameters", "")).splitlines()
        )
        points = decimal(found.get("Datapoints", 0))
        rows.append((rule, text.looks_for, text.advice if fired else "", state, points, settings))
    rows += [(rule, "The rule itself failed.", shorten(why, 160), "error", "", "") for rule, why in broken.items()]
    head = ("Rule", "Looks for", "Recommendation", "Times triggered", "Data points", "Parameters")
    count = sum(bool(times_fired(rules, rule)) for rule in rules)
    unjudged = sum("not_evaluated" in details(rules, rule) for rule in rules)
    note = f"{count} of {len(rules)} rules fired." if rules else "No rules ran."
    if unjudged:
        note += f" {unjudged} had nothing to judge."
    if rules:
        note += " They are SageMaker's rules; the verdict has its own criteria."
    return Section("rules", "Rules summary", (note,), (cut_table(head, rows, MAX_RULES),), fired=bool(count))


def step_durations(answers: Answers) -> Section:
    """Statistics and a histogram for each process and phase."""
    key, title, rules = "steps", "Step duration analysis", answers.rules
    found = details(rules, "StepOutlier")
    entries = _step_entries(found.get("step_details"))
    if not entries:
        missing = "Too few training steps were recorded to judge their durations (more than 100 are needed)."
        return Section(key, title, missing=missing)
    rows: list[tuple[str, ...]] = []
    pictures: list[Picture] = []
    total = 0
    for process, entry in entries:
        stats, outliers = entry.get("step_stats", {}), int(number(entry.get("number_of_outliers")))
        total += outliers
        values = (milliseconds(stats.get(name)) for name in ("mean", "max", "p99", "p95", "p50", "min"))
        rows.append((process, readable_phase(str(entry.get("phase", ""))), *values, str(outliers)))
        if len(pictures) < MAX_PICTURES:
            edges = numbers(entry.get("binedges"))
            unit, scale = ("ms", 1e3) if max(edges, default=0.0) < 1 else ("seconds", 1.0)
            name = f"Step durations of {shorten(process, 40)} without waiting, {unit}"
            drawn = charts.histogram(numbers(entry.get("probs")), [edge * scale for edge in edges], name, unit)
            pictures += [Picture(drawn, name)] if drawn else []
    sentence = (
        "Time from the start of a step's forward pass to the end of the optimizer, without waiting for data. "
        f"{plural(total, 'step')} {'is' if total == 1 else 'are'} more than {parameter(rules, 'StepOutlier', 'stddev', '3')} "
        "standard deviations above the mean of their kind."
    )
    head = ("Process", "Phase", "Mean", "Max", "p99", "p95", "p50", "Min", "Outliers")
    return Section(
        key, title, (sentence,), (cut_table(head, rows),), (*pictures, *what_ran(found, "What ran inside the outliers")),
        answers.advice("StepOutlier"), answers.fired("StepOutlier"),
    )  # fmt: skip


def _step_entries(found: object) -> list[tuple[str, Object]]:
    """Flatten step_details: node → entry in the service's form, node → phase → entry in ours."""
    entries: list[tuple[str, Object]] = []
    for node, result in found.items() if isinstance(found, Mapping) else ():
        inner = (
            [result] if isinstance(result, Mapping) and "step_stats" in result else getattr(result, "values", list)()
        )
        entries += [(str(node), entry) for entry in inner if isinstance(entry, Mapping) and "step_stats" in entry]
    return entries


def gpu_use(answers: Answers) -> Section:
    """Box plot of each node with low use, workload histograms, differences between GPUs."""
    key, title, rules = "gpu", "GPU utilization analysis", answers.rules
    low, balance = by_node(rules, "LowGPUUtilization"), by_node(rules, "LoadBalancing")
    workloads = {
        node: result["workloads"] for node, result in balance.items() if isinstance(result.get("workloads"), Mapping)
    }
    if not workloads and not low:
        reasons = [details(rules, rule).get("not_evaluated") for rule in ("LowGPUUtilization", "LoadBalancing")]
        return not_judged(key, title, reasons[0] or reasons[1] or "no GPU metrics")
    sentences: list[str] = []
    pictures: list[Picture] = []
    for node, gpus in list(low.items())[:MAX_PICTURES]:
        pictures += box_plots(gpus, f"GPU use on {node}")
        sentences += _low_use(rules, node, gpus)[: MAX_ROWS - len(sentences)]
    for node, gpus in list(workloads.items())[:MAX_PICTURES]:
        pictures += _workload(node, gpus)
        if len(gpus) == 1:
            sentences.append(f"{node} has a single GPU, so there is nothing to balance.")
    if answers.finding("LoadBalancing") is not None:
        sentences.append(answers.sentence("LoadBalancing", ""))
    for node, result in balance.items() if answers.verdict is None else ():
        for first, others in dict(result.get("distances") or {}).items():
            sentences += [
                f"{first} and {second} of {node} have different loads (distance {number(value):.2f})."
                for second, value in others.items()
            ][: max(MAX_ROWS - len(sentences), 0)]
    more = max(len(low) - MAX_PICTURES, 0) + max(len(workloads) - MAX_PICTURES, 0)
    if more:
        sentences.append(f"{plural(more, 'picture')} of other nodes not drawn; the rule results have their numbers.")
    advice = " ".join(filter(None, (_advice(rules, "LowGPUUtilization"), answers.advice("LoadBalancing"))))
    return Section(key, title, tuple(sentences), (), tuple(pictures), advice, bool(advice))


def _low_use(rules: Rules, node: str, gpus: Mapping[str, object]) -> list[str]:
    p95, p5 = (number(parameter(rules, "LowGPUUtilization", name, "0")) for name in ("threshold_p95", "threshold_p5"))
    sentences = []
    for name, result in gpus.items():
        if not isinstance(result, Mapping):
            continue
        at95, at5 = number(result.get("gpu_95")), number(result.get("gpu_5"))
        if at95 < p95:
            most = number(result.get("gpu_max"))
            sentences.append(
                f"{name} on {node} is underused: its 95th percentile is {at95:.0f} %, its maximum {most:.0f} %."
            )
        elif at5 < p5:
            sentences.append(
                f"{name} on {node} fluctuates between {at5:.0f} % (5th percentile) and {at95:.0f} % (95th percentile)."
            )
    return sentences


def _workload(node: str, gpus: Mapping[str, Sequence[float]]) -> list[Picture]:
    series = [(str(name), numbers(counts)) for name, counts in list(gpus.items())[:MAX_LINES]]
    drawn = charts.workload(series, f"Distribution of the use of each GPU of {node}")
    colours = charts.LINE_COLOURS
    legend = tuple((name, colours[place % len(colours)], "") for place, (name, _) in enumerate(series))
    return [Picture(drawn, f"Workload of the GPUs of {node}", legend)] if drawn else []


def dataloading(answers: Answers) -> Section:
    """Loader processes compared with cores, settings, and a histogram of loading times."""
    key, title, rules = "loader", "Dataloading analysis", answers.rules
    found = details(rules, "Dataloader")
    if not found.get("cores"):
        why = "no dataloader events were recorded; they need a dataloader window in the configuration"
        return not_judged(key, title, found.get("not_evaluated") or why)
    processes, cores = (int(number(found.get(name))) for name in ("dataloaders", "cores"))
    ran = f"{processes:,} data loading process{'' if processes == 1 else 'es'} ran on {plural(cores, 'CPU core')}."
    sentences = [ran] if processes else []
    waits = {node: number(share) for node, share in (found.get("waiting_share") or {}).items()}
    if waits and answers.verdict is None:  # else the parts of the loop have the share that the verdict judges
        node = max(waits, key=lambda node: waits[node])
        on = f" on {node}, the most of {len(waits)} nodes" if len(waits) > 1 else ""
        sentences.append(f"The loop waited for batches {percent(waits[node])} of its time{on}.")
    if found.get("num_workers") is not None:
        sentences.append(f"num_workers is {decimal(found['num_workers'])}.")
    if found.get("pin_memory") is False:
        sentences.append("pin_memory is off; with a GPU, pin_memory=True lets copies overlap with computation.")
    if found.get("prefetch") is False:
        sentences.append("No prefetching was recorded; add it to the input pipeline.")
    times = found.get("dataloading_time") or {}
    drawn = charts.histogram(
        numbers(times.get("probs")), numbers(times.get("binedges")), "Time to load a batch, seconds", "seconds",
        colour="amber",
    )  # fmt: skip
    pictures = (Picture(drawn, "Time to load a batch"),) if drawn else ()
    return Section(
        key, title, tuple(sentences), (), pictures, answers.advice("Dataloader"), answers.fired("Dataloader")
    )


def batch_size(answers: Answers) -> Section:
    """Box plot of CPU, GPU and GPU memory of each underused node."""
    key, title, rules = "batch", "Batch size", answers.rules
    found = by_node(rules, "BatchSize")
    pictures = [
        picture
        for node, result in list(found.items())[:MAX_PICTURES]
        for picture in box_plots(result, f"CPU, GPU and GPU memory on {node}")
    ]
    why = details(rules, "BatchSize").get("not_evaluated")
    fired = answers.fired("BatchSize")
    if not pictures and not fired and why:
        return not_judged(key, title, why)
    if not pictures and not fired:
        return Section(key, title, ("CPU, GPUs and GPU memory are well used; the batch size needs no change.",))
    sentence = f"CPU, GPU and GPU memory are all underused on {plural(len(found), 'node')}."
    if not fired:
        sentence = f"{sentence} The time of a step has other causes than the batch size: see the verdict."
    sentence = answers.sentence("BatchSize", sentence)
    return Section(key, title, (sentence,), (), tuple(pictures), answers.advice("BatchSize"), fired=fired)


def bottleneck(rules: Rules, rule: str, title: str, key: str) -> Section:
    """Share of the moments with the bottleneck, and what ran in them."""
    found, result = details(rules, rule), rules.get(rule, {})
    points = int(number(result.get("Datapoints")))
    if found.get("not_evaluated"):
        return not_judged(key, title, found["not_evaluated"])
    if not points:
        return Section(key, title, missing="No system metrics were recorded.")
    hits, low = int(number(result.get("Violations"))), int(number(found.get("low_gpu_utilization")))
    cause = "CPU cores were saturated" if rule == "CPUBottleneck" else "CPU cores waited for the disk"
    limit = parameter(rules, rule, "threshold", "50")
    sentence = f"In {percent(hits / points)} of {points:,} moments, GPUs were idle while {cause}; the rule fires above {limit} %."
    shares = {
        "Above the threshold": max(points - low, 0),
        "Low for another reason": max(low - hits, 0),
        f"Low while {cause}": hits,
    }
    ring = share_ring(shares, "GPU use") if low else None
    pictures = [*([ring] if ring else []), *what_ran(found, "What ran at these moments")]
    advice = _advice(rules, rule)
    return Section(key, title, (sentence,), (), tuple(pictures), advice, bool(advice))


def gpu_memory(answers: Answers) -> Section:
    """Box plot and increases of each node whose GPU memory grew."""
    key, title, rules = "memory", "GPU memory", answers.rules
    found = by_node(rules, "GPUMemoryIncrease")
    if not found:
        why = details(rules, "GPUMemoryIncrease").get("not_evaluated")
        return not_judged(key, title, why) if why else Section(key, title, ("GPU memory did not jump.",))
    sentences: list[str] = []
    pictures: list[Picture] = []
    for node, gpus in list(found.items())[:MAX_PICTURES]:
        pictures += box_plots(gpus, f"GPU memory on {node}")
        sentences += [
            f"{name} on {node} rose by {number(result.get('increase')):.1f} percentage points between two windows; its maximum is "
            f"{number(result.get('gpu_max')):.0f} %."
            for name, result in gpus.items() if isinstance(result, Mapping)
        ][:MAX_ROWS]  # fmt: skip
    advice, fired = answers.advice("GPUMemoryIncrease"), answers.fired("GPUMemoryIncrease")
    return Section(key, title, tuple(sentences), (), tuple(pictures), advice, fired)
