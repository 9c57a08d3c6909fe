"""Texts of sections: reasons for missing content, units, singular and plural."""

import pytest

from sm_profiler.render.page import MAX_STRETCHES, render_html, timeline
from sm_profiler.render.sections import build_sections
from sm_profiler.render.view import glance
from sm_profiler.report import Class, Finding, Verdict
from sm_profiler.rules.statistics import TimeBreakdown
from tests.support.reports import events, metrics_of, report_from, training


def sections_of(rules):
    return {section.key: section for section in build_sections(metrics_of(), rules, {})}


def result(points=0, **details):
    return {"RuleTriggered": 0, "Violations": 0, "Datapoints": points, "Details": details, "RuleParameters": ""}


@pytest.mark.parametrize(
    ("key", "rule"),
    [("cpu", "CPUBottleneck"), ("io", "IOBottleneck"), ("gpu", "LowGPUUtilization"), ("batch", "BatchSize"), ("memory", "GPUMemoryIncrease")],
)  # fmt: skip
def test_gpu_sections_explain_missing_gpus(key, rule):
    section = sections_of({rule: result(479, not_evaluated="no GPU metrics here")})[key]
    assert section.missing == "Not judged: no GPU metrics here."
    assert not section.sentences


@pytest.mark.parametrize(
    ("processes", "cores", "sentence"),
    [(1, 1, "1 data loading process ran on 1 CPU core."), (3, 8, "3 data loading processes ran on 8 CPU cores.")],
)
def test_nouns_agree_with_counts(processes, cores, sentence):
    section = sections_of({"Dataloader": result(9, cores=cores, dataloaders=processes)})["loader"]
    assert sentence in section.sentences


def test_step_durations_are_in_milliseconds():
    one = {
        "step_stats": {"mean": 0.0123, "max": 1.5},
        "probs": [3, 1],
        "binedges": [0.01, 0.02, 0.03],
        "phase": "Step:ModeKeys.TRAIN",
    }
    section = sections_of({"StepOutlier": result(500, step_details={"algo-1-0": one})})["steps"]
    assert section.tables[0].rows[0][2:4] == ("12.3 ms", "1.5 s")
    assert "without waiting for data" in section.sentences[0]
    assert section.pictures[0].caption.endswith("without waiting, ms")


@pytest.mark.parametrize(("times", "marked"), [(5, 5), (MAX_STRETCHES + 1, 0)])
def test_timeline_marks_all_evaluations_or_none(times, marked):
    rows = []
    for number in range(times):
        rows += training(1, at=1 + number, number=number)
        rows += training(1, at=1.5 + number, number=number, mode="EVAL", backward=0, optimizer=0)
    data = timeline(metrics_of(rows))
    assert len(data["evaluation"]) == marked
    assert data["stretches_left_out"] == times - marked


def test_advice_contains_no_markup():
    verdict = report_from(training(200)).verdict
    assert verdict.main.kind is Class.BALANCED
    assert "`" not in verdict.main.next_step


@pytest.mark.parametrize(("sizes", "samples"), [((32,), "32 per batch"), ((32, 64), None), ((None,), None)])
def test_shows_samples_per_second_if_batch_sizes_agree(sizes, samples):
    report = report_from(training(200), metadata=tuple({"batch_size": size} for size in sizes))
    tiles = {name: (value, note) for name, value, note in glance(report)}
    assert tiles.get("Samples", (None, None))[1] == samples
    if samples:
        speed = report.metrics.steps_per_second
        assert tiles["Samples"][0] == f"{speed * 32:,.0f} /s"


def test_each_share_of_the_loop_has_one_definition_on_the_page():
    other = {"phase": {"Step:ModeKeys.TRAIN": 29.5, "others": 70.5}, "forward_backward": {"Forward": 1, "Backward": 2}}
    rules = {"OverallFrameworkMetrics": result(9, **other, ratio={"cpu_functions": 1.0})}
    report = report_from(training(200, wait=0.02), rules=rules)
    (section,) = [
        one for one in build_sections(report.metrics, rules, {}, totals=report.ledger) if one.key == "framework"
    ]
    assert [one.caption for one in section.pictures] == ["Operators on CPU and GPU"]
    assert ("Waiting for data", "68 %", "20 ms per step") in section.tables[0].rows
    assert "70.5 %" not in render_html(report)
    without_loop = {one.key: one for one in build_sections(metrics_of(), rules, {})}["framework"]
    assert len(without_loop.pictures) == 3


def test_operators_of_detailed_windows_are_listed_with_their_layers():
    conv = "gradient_tape/sequential_1/convolution_layer_{}/convolution/Conv2DBackpropFilter:_MklNativeConv2DBackpropFilterWithBias"
    names = {conv.format("a"): 3e-3, conv.format("b"): 2e-3, "jit(train_step)/jvp(head)/dot_general": 1e-3}
    operators = [
        ("cpu_functions", name, 1.5 + at, length, "algo-1-0", 20 + at)
        for name, length in names.items()
        for at in range(4)
    ]
    breakdown = TimeBreakdown()
    breakdown.add(events(operators))
    rules = {"OverallFrameworkMetrics": result(9, **breakdown.shares())}
    report = report_from([*training(200), *operators], rules=rules)
    (section,) = [one for one in build_sections(report.metrics, rules, {}) if one.key == "framework"]
    (table,) = [one for one in section.tables if "Operators on the CPU" in one.head]
    assert [row[0] for row in table.rows] == list(names)
    assert table.rows[0][1:] == ("50.0 %", "12 ms")
    page = render_html(report)
    assert all(name in page for name in names)


def test_what_the_verdict_answers_is_answered_once():
    """Start, batch size and balance of GPUs: the limits of the verdict, not those of the rule, are on the page."""
    report = report_from(training(200))
    assert report.metrics.ranks
    finding = Finding(Class.UNBALANCED_GPUS, "gpu0 works, gpu1 waits.", (), "Balance them.", 0.1)
    verdict = Verdict(report.verdict.main, (finding,))
    workloads = {"gpu0": [0, 1], "gpu1": [1, 0]}
    rules = {
        "MaxInitializationTime": {**result(9), "RuleTriggered": 1},
        "BatchSize": {**result(9), "RuleTriggered": 1},
        "LoadBalancing": {
            **result(9, **{"algo-1": {"workloads": workloads, "distances": {"gpu0": {"gpu1": 0.83}}}}),
            "RuleTriggered": 1,
        },
    }
    judged = {one.key: one for one in build_sections(report.metrics, rules, {}, verdict)}
    assert [judged[key].fired for key in ("summary", "batch", "gpu")] == [False, False, True]
    assert "gpu0 works, gpu1 waits." in judged["gpu"].sentences
    assert not any("distance" in sentence for sentence in judged["gpu"].sentences)
    assert judged["gpu"].advice == "Balance them."
    alone = {one.key: one for one in build_sections(metrics_of(), rules, {}, verdict)}  # nothing was judged
    assert any("distance 0.83" in sentence for sentence in alone["gpu"].sentences)
    assert alone["gpu"].fired
    growing = {"algo-1": {"gpu0": {"increase": 8.0, "gpu_max": 84.0}}}
    rules = {
        "GPUMemoryIncrease": {**result(9, **growing), "RuleTriggered": 1},
        "Dataloader": {**result(9, cores=8, dataloaders=1, waiting_share={"algo-1": 0.2}), "RuleTriggered": 1},
    }
    judged = {one.key: one for one in build_sections(report.metrics, rules, {}, verdict)}
    assert [(judged[key].fired, judged[key].advice) for key in ("memory", "loader")] == [(False, ""), (False, "")]
    assert "rose by 8.0 percentage points" in judged["memory"].sentences[0]
    assert not any("waited for batches" in sentence for sentence in judged["loader"].sentences)
    ruled = {one.key: one for one in build_sections(metrics_of(), rules, {}, verdict)}
    assert all(ruled[key].fired and ruled[key].advice for key in ("memory", "loader"))
