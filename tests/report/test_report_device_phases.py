"""Phases timed by the GPU: they replace the host's, and waits hidden behind the GPU's work cost nothing."""

import numpy as np
import pytest

from sm_profiler.metrics.step_fold import StepFold
from sm_profiler.render.view import shares
from sm_profiler.report import Class
from sm_profiler.report.compare import compare
from sm_profiler.report.report_json import report_json
from tests.support.reports import (
    START_S,
    FakeWindow,
    events,
    gpu_samples,
    metrics_of,
    report_from,
    training,
    verdict_of,
)

DEVICE = ("Forward", 0.015), ("Backward", 0.030), ("Optimizer", 0.002)  # 47 ms a step


def with_device(rows, *, behind=0.0, phases=DEVICE, steps=lambda _: True):
    """Add the phases of a GPU, which runs each step's phases in a row once the step has started and it is free."""
    made, free = list(rows), 0.0
    for phase, _, start, _, node, step in rows:
        if phase.startswith("Step:") and steps(step):
            now = max(start + behind, free)
            for name, length in phases:
                made.append((f"sm_profiler/{name}-gpu", name, now, length, node, step))
                now += length
            free = now
    return made


# The host launches for 5 ms and then waits in .item() until the GPU has finished.
LAUNCHES = {"wait": 0.0005, "forward": 0.002, "backward": 0.002, "optimizer": 0.0005}


def test_waiting_for_the_gpu_is_not_time_outside_the_phases():
    rows = training(200, **LAUNCHES, outside=0.0425)
    assert verdict_of(rows).kind is Class.SYNC_BOUND  # from the host's times alone
    report = report_from(with_device(rows))
    assert report.verdict.kind is Class.BALANCED
    (rank,) = report.metrics.ranks
    assert rank.on_device
    assert rank.share("forward") == pytest.approx(15 / 47.5, abs=0.01)
    assert rank.share("backward") == pytest.approx(30 / 47.5, abs=0.01)
    assert rank.share("outside") < 0.01
    assert "Forward (GPU)" in [each.label for each in shares(report.ledger, on_device=report.metrics.on_device)]
    assert report_json(report).job.ranks[0].phases == "device"


def test_names_what_an_idle_gpu_waits_for():
    logging = with_device(training(200, **LAUNCHES, outside=0.0425 + 0.03))
    assert verdict_of(logging).kind is Class.SYNC_BOUND
    loading = with_device(training(200, **LAUNCHES | {"wait": 0.03}, outside=0.0425))
    found = verdict_of(loading)
    assert found.kind is Class.INPUT_BOUND
    assert found.main.share_of_time == pytest.approx(30 / 77, abs=0.02)


def test_waits_hidden_behind_the_gpus_work_cost_nothing():
    # The host is a step ahead: it waits 20 ms for each batch, then in the optimizer for a place in the queue.
    rows = training(200, wait=0.02, forward=0.002, backward=0.002, optimizer=0.023, outside=0.0)
    assert not verdict_of(rows).main.kind.is_healthy  # from the host's times
    report = report_from(with_device(rows, behind=0.04))
    assert report.verdict.kind is Class.BALANCED
    assert report.metrics.ranks[0].share("wait") < 0.02


def test_finds_an_optimizer_that_is_slow_on_the_gpu():
    slow = (*DEVICE[:2], ("Optimizer", 0.045))
    assert verdict_of(with_device(training(200, **LAUNCHES, outside=0.0855), phases=slow)).kind is Class.OPTIMIZER_BOUND


def test_a_busy_gpu_may_run_work_outside_the_phases():
    rows = with_device(training(200, **LAUNCHES, outside=0.0725))  # 30 ms a step, such as a loss
    assert verdict_of(rows, gpu_samples(60, 8)).kind is Class.SYNC_BOUND
    assert verdict_of(rows, gpu_samples(95, 8)).kind is Class.COMPUTE_BOUND
    slow = with_device(training(200, **LAUNCHES, outside=0.0855), phases=(*DEVICE[:2], ("Optimizer", 0.045)))
    assert verdict_of(slow, gpu_samples(95, 8)).kind is Class.OPTIMIZER_BOUND


def test_compares_runs_with_and_without_gpu_times_by_whole_steps():
    rows = training(200, **LAUNCHES, outside=0.0425)
    found = compare(report_from(rows), report_from(with_device(rows)))
    assert [change.part for change in found.changes] == ["length"]
    assert len(compare(report_from(with_device(rows)), report_from(with_device(rows))).changes) > 1


def test_sampled_gpu_phases_represent_all_steps():
    rows = with_device(training(400, **LAUNCHES, outside=0.0425), steps=lambda step: step % 4 == 0)
    (rank,) = metrics_of(rows).ranks
    assert rank.iterations.known.sum() == 99
    assert rank.share("backward") == pytest.approx(30 / 47.5, abs=0.01)
    assert verdict_of(rows).kind is Class.BALANCED


def test_keeps_host_phases_if_too_few_steps_have_gpu_times():
    (rank,) = metrics_of(with_device(training(200), steps=lambda step: step < 10)).ranks
    assert not rank.on_device
    assert rank.share("forward") == pytest.approx(3 / 10.2, abs=0.01)


def test_gpu_phases_belong_to_the_step_with_their_number():
    rows = with_device(training(6, **LAUNCHES, outside=0.0425), behind=0.06)  # a step and more behind
    fold = StepFold()
    fold.update(FakeWindow(START_S * 1_000_000, events(rows), None))
    steps = fold.result().steps["algo-1-0"]
    assert np.allclose(steps.seconds("forward", on_device=True), 0.015)
    assert np.allclose(steps.seconds("backward", on_device=True), 0.030)
    assert np.allclose(steps.seconds("wait"), 0.0005)


@pytest.mark.parametrize(
    ("host", "kind"),
    [
        ({"outside": 0.03}, Class.SYNC_BOUND),
        ({"wait": 0.03}, Class.INPUT_BOUND),
        ({"optimizer": 0.03}, Class.OPTIMIZER_BOUND),
    ],
)
def test_a_busy_gpu_rules_out_host_findings(host, kind):
    rows = training(200, **host)
    assert verdict_of(rows, gpu_samples(60, 8)).kind is kind
    assert verdict_of(rows, gpu_samples(93, 8)).kind is Class.COMPUTE_BOUND
