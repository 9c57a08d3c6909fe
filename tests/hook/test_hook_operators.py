"""Operators of a step, counted in the autograd graph, and their cost on this machine."""

import pytest
import torch
from torch import nn

from sm_profiler.formats.event_names import OPERATORS
from sm_profiler.hook.pytorch import graphs
from sm_profiler.hook.pytorch.graphs import FIRST_STEP, TIMED_STEPS, calibrate, count_operators


def deep(layers: int) -> nn.Module:
    return nn.Sequential(*(layer for _ in range(layers) for layer in (nn.Linear(4, 4), nn.ReLU())))


def train(model: nn.Module, steps: int, backwards: int = 1) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        losses = [model(torch.ones(2, 4)).sum() for _ in range(backwards)]
        for loss in losses:
            loss.backward()
        optimizer.step()


@pytest.fixture
def records(session):
    found = []
    session.work._append = session.append = found.append
    return found


def counts(records):
    return [(record[4], record[5]["operators"]) for record in records if record[0] == OPERATORS]


def test_counts_a_forward_and_a_backward_operator_per_node():
    x = torch.ones(3, requires_grad=True)
    assert count_operators([(x * 2).sum().grad_fn]) == (5, 1)  # two nodes, and the leaf
    y = x * 2
    assert count_operators([(y + y).sum().grad_fn]) == (7, 1)  # a shared node counts once
    assert count_operators([x.grad_fn]) == (0, 0)


def test_a_huge_graph_is_counted_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(graphs, "MAX_NODES", 50)
    y = torch.ones(3, requires_grad=True)
    for _ in range(1000):
        y = y * 2
    assert 50 <= count_operators([y.grad_fn])[0] <= 100


@pytest.mark.parametrize("batch", [4, 32])
def test_a_loop_over_samples_reads_a_result_for_each_of_them(batch):
    model, x = deep(3), torch.ones(batch, 4)
    y = model(x)
    each = sum(one.square().sum() for one in y)
    assert count_operators([each.grad_fn])[1] == batch
    by_number = sum(y[number].square().sum() for number in range(batch))
    assert count_operators([by_number.grad_fn])[1] == batch
    assert count_operators([y.square().sum().grad_fn])[1] == 1


@pytest.mark.parametrize("batch", [8, 32])
def test_gradients_of_gradients_are_no_loop_over_samples(batch):
    model, x = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)), torch.ones(batch, 4, requires_grad=True)
    y = model(x)
    (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    loss = ((slope[:, 1:] + y * slope[:, :1]) ** 2).mean() + (y[:1] - 1).pow(2).mean()
    assert count_operators([loss.grad_fn])[1] < 4


def test_a_step_is_counted_and_the_cost_calibrated(records, session):
    train(deep(20), FIRST_STEP + TIMED_STEPS + 3)
    ((step, count),) = counts(records)
    assert step == FIRST_STEP
    assert 20 * 8 - 2 <= count <= 20 * 8 + 4  # the first input needs no gradient
    (record,) = [record for record in records if record[0] == OPERATORS]
    assert 0 < record[5]["fixed_us"] < 1e5
    assert record[5]["step_us"] > 0
    assert session.guard.failures == {}


@pytest.mark.parametrize("backwards", [1, 3])
def test_the_backward_passes_of_a_step_add_up(records, backwards):
    train(deep(5), FIRST_STEP + TIMED_STEPS + 3, backwards)
    assert counts(records)[0][1] // backwards in range(36, 46)


def test_calibration_uses_no_random_numbers_and_leaves_modes_alone():
    state = torch.get_rng_state()
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        assert calibrate(torch, lambda measure: measure()) > 0
        assert torch.is_autocast_enabled("cpu")
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)


def test_waiting_for_a_core_is_known_or_zero(monkeypatch, tmp_path):
    assert graphs.waited_ns(graphs.THIS_THREAD) >= 0
    for content in ("", "x y z", "1"):
        (tmp_path / "odd").write_text(content)
        assert graphs.waited_ns(tmp_path / "odd") == 0
    assert graphs.waited_ns(tmp_path / "none") == 0


def test_threads_that_train_at_once_finish_a_count_once(session, records, monkeypatch):
    """Another thread finishes the count while one of them calibrates."""
    count = graphs.OperatorCount(session, torch)
    count._step, count._edges = 3, list(range(TIMED_STEPS + 1))
    calls = []

    def calibrated(*_):
        calls.append(1)
        count._finish()
        return 1.0

    monkeypatch.setattr(graphs, "calibrate", calibrated)
    count._finish()
    assert len(calls) == 1
    assert len(counts(records)) == 1
