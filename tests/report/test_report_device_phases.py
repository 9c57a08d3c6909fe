"""A GPU runs behind the host: what its own phases say is what counts, and what hides behind its work is no loss."""

import numpy as np
import pytest
from report_helpers import START_S, FakeWindow, events, facts_of, gpu_samples, report_from, training, verdict_of

from sm_profiler.report import Class
from sm_profiler.report.compare import compare
from sm_profiler.report.slices import loop_slices
from sm_profiler.report.step_fold import DEVICE_BACKWARD, DEVICE_FORWARD, WAIT, StepFold

DEVICE = ("Forward", 0.015), ("Backward", 0.030), ("Optimizer", 0.002)  # 47 ms a step


def with_device(rows, *, behind=0.0, phases=DEVICE, steps=lambda _: True):
    """The same loop with what the device did: each step's phases in a row, from when the step began and it was free."""
    made, free = list(rows), 0.0
    for phase, _, start, _, node, step in rows:
        if phase.startswith("Step:") and steps(step):
            now = max(start + behind, free)
            for name, length in phases:
                made.append((f"sm_profiler/{name}-gpu", name, now, length, node, step))
                now += length
            free = now
    return made


# The host launches for 5 ms and then stands in .item() until the device is through.
LAUNCHES = {"wait": 0.0005, "forward": 0.002, "backward": 0.002, "optimizer": 0.0005}


def test_the_time_in_which_the_host_waits_for_the_device_is_no_time_outside_the_phases():
    rows = training(200, **LAUNCHES, outside=0.0425)
    assert verdict_of(rows).kind is Class.SYNC_BOUND  # all that the host's times can say
    report = report_from(with_device(rows))
    assert report.verdict.kind is Class.BALANCED
    (rank,) = report.facts.ranks
    assert rank.on_device
    assert rank.share("forward") == pytest.approx(15 / 47.5, abs=0.01)
    assert rank.share("backward") == pytest.approx(30 / 47.5, abs=0.01)
    assert rank.share("outside") < 0.01
    assert "Forward (GPU)" in [one.label for one in loop_slices(report.facts.ranks)]
    assert report.facts.as_dict()["ranks"][0]["phases"] == "device"


def test_a_device_that_is_kept_waiting_by_the_loop_shows_what_for():
    logging = with_device(training(200, **LAUNCHES, outside=0.0425 + 0.03))
    assert verdict_of(logging).kind is Class.SYNC_BOUND
    loading = with_device(training(200, **LAUNCHES | {"wait": 0.03}, outside=0.0425))
    found = verdict_of(loading)
    assert found.kind is Class.INPUT_BOUND
    assert found.main.share_of_time == pytest.approx(30 / 77, abs=0.02)


def test_a_wait_behind_the_devices_work_costs_nothing():
    # The host is a step ahead: it waits 20 ms for each batch, then for room in the queue, which it meets in the optimizer.
    rows = training(200, wait=0.02, forward=0.002, backward=0.002, optimizer=0.023, outside=0.0)
    assert not verdict_of(rows).main.kind.is_healthy  # by the host's times
    report = report_from(with_device(rows, behind=0.04))
    assert report.verdict.kind is Class.BALANCED
    assert report.facts.ranks[0].share("wait") < 0.02


def test_a_slow_optimizer_of_the_device():
    slow = (*DEVICE[:2], ("Optimizer", 0.045))
    assert verdict_of(with_device(training(200, **LAUNCHES, outside=0.0855), phases=slow)).kind is Class.OPTIMIZER_BOUND


def test_a_busy_device_may_run_what_is_in_no_phase():
    rows = with_device(training(200, **LAUNCHES, outside=0.0725))  # 30 ms a step: a loss, say
    assert verdict_of(rows, gpu_samples(60, 8)).kind is Class.SYNC_BOUND
    assert verdict_of(rows, gpu_samples(95, 8)).kind is Class.COMPUTE_BOUND
    slow = with_device(training(200, **LAUNCHES, outside=0.0855), phases=(*DEVICE[:2], ("Optimizer", 0.045)))
    assert verdict_of(slow, gpu_samples(95, 8)).kind is Class.OPTIMIZER_BOUND


def test_a_run_with_the_devices_times_and_one_without_are_compared_by_their_steps():
    rows = training(200, **LAUNCHES, outside=0.0425)
    found = compare(report_from(rows), report_from(with_device(rows)))
    assert [change.part for change in found.changes] == ["length"]
    assert len(compare(report_from(with_device(rows)), report_from(with_device(rows))).changes) > 1


def test_the_devices_phases_of_every_fourth_step_stand_for_all():
    rows = with_device(training(400, **LAUNCHES, outside=0.0425), steps=lambda step: step % 4 == 0)
    (rank,) = facts_of(rows).ranks
    assert rank.turns.known.sum() == 99
    assert rank.share("backward") == pytest.approx(30 / 47.5, abs=0.01)
    assert verdict_of(rows).kind is Class.BALANCED


def test_too_few_steps_of_the_device_leave_the_hosts():
    (rank,) = facts_of(with_device(training(200), steps=lambda step: step < 10)).ranks
    assert not rank.on_device
    assert rank.share("forward") == pytest.approx(3 / 10.2, abs=0.01)


def test_a_phase_of_the_device_belongs_to_the_step_of_its_number():
    rows = with_device(training(6, **LAUNCHES, outside=0.0425), behind=0.06)  # a step and more behind
    fold = StepFold()
    fold.update(FakeWindow(START_S * 1_000_000, events(rows), None))
    steps = fold.result().steps["algo-1-0"]
    assert np.allclose(steps.parts[:, DEVICE_FORWARD], 15_000)
    assert np.allclose(steps.parts[:, DEVICE_BACKWARD], 30_000)
    assert np.allclose(steps.parts[:, WAIT], 500)


@pytest.mark.parametrize(
    ("host", "kind"),
    [
        ({"outside": 0.03}, Class.SYNC_BOUND),
        ({"wait": 0.03}, Class.INPUT_BOUND),
        ({"optimizer": 0.03}, Class.OPTIMIZER_BOUND),
    ],
)
def test_where_only_the_use_of_the_gpu_is_known_a_busy_one_hides_what_the_host_does(host, kind):
    rows = training(200, **host)
    assert verdict_of(rows, gpu_samples(60, 8)).kind is kind
    assert verdict_of(rows, gpu_samples(93, 8)).kind is Class.COMPUTE_BOUND
