"""Models without hooks: in steps whose phases are not recorded, only the first two forwards are seen."""

import copy
import sys

import pytest
import torch

from sm_profiler.formats.event_names import FORWARD
from sm_profiler.hook import entry
from sm_profiler.hook.other_threads import outwards
from sm_profiler.hook.sampler import phase_of

STEPS = 40


class Loop:
    """A training loop that calls its model several times a step."""

    def __init__(self, session, calls: int = 5) -> None:
        self.tracker, self.calls = session.tracker, calls
        self.model = torch.nn.Linear(2, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        self.records, self.inside = [], lambda: None
        self.step()  # discovery
        self.tracker.append = self.records.append

    def step(self) -> None:
        self.optimizer.zero_grad()
        loss = 0
        for _ in range(self.calls):
            loss = loss + self.model(torch.ones(1, 2)).sum()
            self.inside()
        loss.backward()
        self.optimizer.step()

    def hooks(self) -> int:
        return len(self.model._forward_pre_hooks) + len(self.model._forward_hooks)


@pytest.fixture
def loop(session):
    return Loop(session)


def steps(loop: Loop, every: int, count: int = STEPS) -> list[tuple[str, int]]:
    loop.tracker.every = every
    for _ in range(count):
        loop.step()
    loop.tracker.end_step()
    return [(record[0], record[4]) for record in loop.records]


def test_steps_are_the_same_with_sparse_phases(session):
    dense, sparse = steps(Loop(session), 1), steps(Loop(session), 8)
    counted = [sum(name.startswith("Step") for name, _ in found) for found in (dense, sparse)]
    assert counted[0] == counted[1] >= STEPS
    forwards = [sum(name == FORWARD for name, _ in found) for found in (dense, sparse)]
    assert forwards[0] >= 5 * STEPS
    assert forwards[1] in (5 * STEPS // 8, 5 * STEPS // 8 + 5)  # all of every eighth step
    assert session.guard.failures == {}


def test_hooks_are_off_after_the_second_forward_until_the_step_ends(loop):
    seen = []
    loop.inside = lambda: seen.append(loop.hooks())
    steps(loop, 4, 4)
    sparse = [2, 0, 0, 0, 0]
    assert sorted([seen[at : at + 5] for at in range(0, 20, 5)]) == sorted([sparse, sparse, sparse, [2] * 5])
    assert loop.hooks() == 2


def test_the_sampler_sees_a_muted_forward_on_the_stack(loop):
    seen = []

    def forward(x):
        seen.append((loop.hooks(), phase_of(loop.tracker, outwards(sys._getframe()))))
        return x * loop.model.weight.sum()

    loop.model.forward = forward
    loop.inside = lambda: seen.append((loop.hooks(), phase_of(loop.tracker, outwards(sys._getframe()))))
    steps(loop, 64, 3)
    muted = [phase for hooks, phase in seen if not hooks]
    assert set(muted[::2]) | set(muted[1::2]) == {"forward", "between"}
    assert {phase for hooks, phase in seen if hooks} == {"forward", "between"}


def test_hooks_that_the_script_adds_meanwhile_stay_and_can_be_removed(loop):
    calls, handles = [], []

    def add() -> None:
        if not handles and not loop.hooks():
            handles.append(loop.model.register_forward_hook(lambda *_: calls.append(1)))

    loop.inside = add
    steps(loop, 64, 2)
    assert handles
    before = len(calls)
    loop.inside = lambda: None
    steps(loop, 64, 2)
    assert len(calls) == before + 10
    handles[0].remove()
    steps(loop, 64, 1)
    assert len(calls) == before + 10
    assert loop.hooks() == 2


def test_a_copy_made_meanwhile_has_no_hooks(loop):
    copies = []
    loop.inside = lambda: copies.append(copy.deepcopy(loop.model))
    steps(loop, 64, 3)
    assert {len(one._forward_hooks) for one in copies} == {0}
    assert copies[-1](torch.ones(1, 2)).shape == (1, 2)


def test_an_exception_in_a_forward_reaches_the_script(loop):
    def fails(_):
        raise KeyError("mine")

    usual = type(loop.model).forward.__get__(loop.model)
    loop.inside = lambda: setattr(loop.model, "forward", usual if loop.hooks() else fails)
    loop.tracker.every = 64
    with pytest.raises(KeyError, match="mine"):
        steps(loop, 64, 3)
    loop.model.forward, loop.inside = usual, lambda: None
    loop.optimizer.step()
    assert loop.hooks() == 2


def test_without_an_optimizer_every_forward_counts(session):
    model = torch.nn.Linear(2, 2)
    session.tracker.every = 64
    for _ in range(20):
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
    assert session.tracker.unreported is None
    assert session.guard.failures == {}


def test_uninstalling_in_the_middle_of_a_step_leaves_nothing(loop, session):
    loop.inside = lambda: None if loop.hooks() else entry.uninstall()
    steps(loop, 64, 3)
    assert loop.hooks() == 0
    assert session.guard.failures == {}


def test_global_hooks_of_the_script_see_its_own_modules_only(loop):
    seen = set()
    handle = torch.nn.modules.module.register_module_forward_hook(lambda module, *_: seen.add(id(module)))
    try:
        steps(loop, 1)
    finally:
        handle.remove()
    assert seen == {id(loop.model)}
