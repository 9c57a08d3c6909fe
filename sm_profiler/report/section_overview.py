"""The sections about the job as a whole: summary, machines, framework, rules."""

from __future__ import annotations

from collections.abc import Mapping

from sm_profiler.report.job_metrics import Facts
from sm_profiler.report.judges.judge_context import duration, percent
from sm_profiler.report.labels import RULES
from sm_profiler.report.section_parts import (
    MAX_ROWS,
    Object,
    Section,
    Table,
    cut_table,
    details,
    moment,
    natural,
    number,
    plain,
    shares,
    times_fired,
)
from sm_profiler.report.svg import shorten


def summary(facts: Facts, rules: Mapping[str, Object]) -> Section:
    """Start, end, loop, initialization, finalization."""
    found = details(rules, "MaxInitializationTime")
    start, end = number(found.get("job_start", facts.start)), number(found.get("job_end", facts.end))
    whole = end - start
    if whole <= 0:
        return Section("summary", "Training job summary", missing="No system metrics and no steps were recorded.")
    rows = [("Start", moment(start)), ("End", moment(end)), ("Duration", duration(whole))]
    steps = found.get("step_num") or {}
    first, last = number(steps.get("first")) / 1e6, number(steps.get("last")) / 1e6
    if facts.loop:
        first, last = facts.loop
    if not first or last < first:
        note = "Initialization and training loop cannot be told apart: no training steps were recorded."
        return Section("summary", "Training job summary", (note,), (Table(("", ""), tuple(rows)),))
    before, loop, after = max(first - start, 0.0), last - first, max(end - last, 0.0)
    rows += [
        ("Training loop start", moment(first)), ("Training loop end", moment(last)),
        ("Training loop", f"{duration(loop)} ({percent(loop / whole)})"),
        ("Initialization", f"{duration(before)} ({percent(before / whole)})"),
        ("Finalization", f"{duration(after)} ({percent(after / whole)})"),
    ]  # fmt: skip
    parts = {"Training loop": loop, "Initialization": before, "Finalization": after}
    picture = shares(parts, "Where the job's time went")
    sentences = (
        () if not times_fired(rules, "MaxInitializationTime") else ("Initialization took longer than the rule allows.",)
    )
    return Section(
        "summary", "Training job summary", sentences, (Table(("", ""), tuple(rows)),), (picture,) if picture else (),
        RULES["MaxInitializationTime"][1] if sentences else "", bool(sentences),
    )  # fmt: skip


def system_usage(rules: Mapping[str, Object]) -> Section:
    """The table of max, p99, p95, p50 and min for each node and metric."""
    found = details(rules, "OverallSystemUsage")
    units = {"Network": "bytes/s"}
    rows: list[tuple[str, ...]] = []
    sentences: list[str] = []
    nodes = sorted(
        {node for by_node in found.values() if isinstance(by_node, Mapping) for node in by_node}, key=natural
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
                        *(plain(stats.get(key)) for key in ("max", "p99", "p95", "p50", "min")),
                    )
                )
        gpu, cpu = (found.get(metric, {}).get(node, {}) for metric in ("GPU", "CPU"))
        words = [
            f"{name} use {plain(stats.get('p50'))} % (95th percentile {plain(stats.get('p95'))} %)"
            for name, stats in (("CPU", cpu), ("GPU", gpu))
            if stats
        ]
        if words and len(sentences) < 8:  # noqa: PLR2004 - what the number means stands in the line
            sentences.append(f"{node}: median {' and '.join(words)}.")
    if not rows:
        return Section("system", "System usage statistics", missing="No system metrics were recorded.")
    head = ("Node", "Metric", "Unit", "Max", "p99", "p95", "p50", "Min")
    return Section("system", "System usage statistics", tuple(sentences), (cut_table(head, rows, 12 * MAX_ROWS),))


def framework(rules: Mapping[str, Object]) -> Section:
    """Shares of modes, passes, operators."""
    found = details(rules, "OverallFrameworkMetrics")
    titles = {
        "phase": "Training, evaluation, others", "forward_backward": "Forward and backward pass",
        "ratio": "Operators on CPU and GPU", "general": "General operations", "horovod": "Horovod",
    }  # fmt: skip
    pictures = [shares(found[key], title) for key, title in titles.items() if isinstance(found.get(key), Mapping)]
    tables = []
    for key, title in (("CPU", "Operators on the CPU"), ("GPU", "Operators on the GPU")):
        parts, totals = found.get(key), found.get(f"{key}_total")
        if isinstance(parts, Mapping) and parts:
            totals = totals if isinstance(totals, Mapping) else {}
            order = [name for _, name in sorted((-number(share), str(name)) for name, share in parts.items())]
            rows = [
                (shorten(str(name), 90), f"{number(parts[name]):.1f} %", duration(number(totals.get(name)) / 1e6))
                for name in order
            ]
            tables.append(cut_table((title, "Share", "Time in all"), rows))
    kept = tuple(picture for picture in pictures if picture)
    if not kept:
        why = "No framework data were recorded: start the script with 'sm-profiler run', or set SM_PROFILER_AUTO=1."
        return Section("framework", "Framework metrics summary", missing=why)
    return Section("framework", "Framework metrics summary", (), tuple(tables), kept)


def rule_table(rules: Mapping[str, Object], broken: Mapping[str, str]) -> Section:
    """All rules, most triggered first."""
    rows = []
    for rule in sorted(rules, key=lambda name: (-times_fired(rules, name), name)):
        found = rules[rule]
        what, advice = RULES.get(rule, ("A rule of your own.", ""))
        fired = times_fired(rules, rule)
        why_not = details(rules, rule).get("not_evaluated")
        state = str(fired) if not why_not else f"not judged: {shorten(str(why_not), 160)}"
        settings = ", ".join(
            shorten(line, 60).replace(":", " ") for line in str(found.get("RuleParameters", "")).splitlines()
        )
        rows.append((rule, what, advice if fired else "", state, plain(found.get("Datapoints", 0)), settings))
    rows += [(rule, "The rule itself failed.", shorten(why, 160), "error", "", "") for rule, why in broken.items()]
    head = ("Rule", "Looks for", "Recommendation", "Times triggered", "Data points", "Parameters")
    fired_rules = [rule for rule in rules if times_fired(rules, rule)]
    note = f"{len(fired_rules)} of {len(rules)} rules fired." if rules else "No rule ran."
    return Section("rules", "Rules summary", (note,), (cut_table(head, rows, 100),), fired=bool(fired_rules))
