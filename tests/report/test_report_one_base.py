"""Headline, evidence, share_of_time and chart are shares of the same whole: the loop with its evaluation."""

import re

import pytest

from sm_profiler.formatting import duration, percent
from sm_profiler.render.page import render_html
from sm_profiler.render.view import shares
from sm_profiler.report import Class, terminal_summary
from tests.support.reports import gpu_samples, report_from, training


def with_evaluation(**loop):
    """Return a loop that is largely evaluation."""
    rows = training(361, number=1, **loop)
    end = max(row[2] + row[3] for row in rows)
    return rows + training(120, at=end, wait=0, forward=0.008, backward=0, optimizer=0, outside=0, mode="EVAL")


CASES = {
    Class.INPUT_BOUND: ("wait", {"wait": 0.012}),
    Class.PERIODIC_STALL: ("outside", {"every": 40, "stall": 0.3, "outside": 0.0}),
}


@pytest.mark.parametrize("kind", CASES)
def test_headline_and_chart_show_the_same_share(kind):
    which, loop = CASES[kind]
    report = report_from(with_evaluation(**loop))
    main, slice_ = report.verdict.main, report.metrics.average_share(which)
    assert main.kind is kind
    assert report.metrics.average_share("evaluation") > 0.1
    shown = float(re.search(r"(\d+) % of the (?:loop|time)", main.headline)[1])
    assert shown == pytest.approx(100 * slice_, abs=1)
    assert main.share_of_time == pytest.approx(slice_, abs=0.005)
    if kind is Class.INPUT_BOUND:
        assert "(57 % of a training step: 12 of 21.2 ms)" in main.headline
    assert main.evidence[0].value == pytest.approx(slice_, abs=0.005)


def test_a_headline_of_one_share_has_the_numbers_of_the_chart():
    """It was 91 % of the time, and 21.6 of 24.1 ms: the share was the loop's, the times those of usual iterations."""
    rows = training(1, wait=0.02, forward=0.1)  # the first step is in the loop, and in no iteration
    rows += training(99, at=1.1262, number=1, wait=0.02)
    report = report_from(rows)
    share, wait, step = re.search(r"(\d+) % of the time: ([\d.]+) ms of an average training step of ([\d.]+) ms", report.verdict.main.headline).groups()  # fmt: skip
    assert float(wait) / float(step) == pytest.approx(float(share) / 100, abs=0.005)
    (chart,) = [each for each in shares(report.ledger) if each.name == "waiting for data"]
    assert f"{wait} ms" == duration(chart.seconds)


def test_a_busy_gpu_is_not_healthy_beside_a_problem():
    verdict = report_from(training(400, wait=0.01), gpu_samples(82, 8)).verdict
    assert verdict.kind is Class.INPUT_BOUND
    assert not [finding for finding in verdict.also if finding.kind.is_healthy]


def test_unrecorded_waits_are_not_shown_as_small():
    rows = training(200, wait=0)
    rows += [("DataLoaderIter", "DataLoaderIter", rows[0][2] + 0.0091 * 3 + 0.0275, 0.0001, "algo-1-0", 3)]
    report = report_from(rows)
    assert "waiting for data over the whole loop" in dict(report.verdict.not_judged)
    for shown in (render_html(report), terminal_summary(report, width=100)):
        assert not re.search(r"[Ww]aiting for data(</span> <b>)? \d", shown)


def test_page_and_terminal_show_the_same_shares():
    report = report_from(training(200, wait=0.004, outside=0.00004))
    terminal = " ".join(terminal_summary(report, width=100).split())
    named = [each for each in shares(report.ledger) if each.is_named]
    assert len(named) == 5
    assert sum(each.share for each in shares(report.ledger)) == pytest.approx(1)
    page = render_html(report)
    for each in named:
        assert f"{each.label}</span> <b>{percent(each.share)}</b>" in page
        assert f"{each.name} {percent(each.share)}" in terminal
