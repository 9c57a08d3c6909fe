"""Rest: of steps whose phases are not recorded, only the optimizer's end and the arrival of the batch are noted."""

import copy
import json
import os
import sys
from itertools import pairwise

import pytest
import torch
from fake_cuda import QueueGpu, use

from sm_profiler.config import load_profile
from sm_profiler.formats.event_names import (
    BACKWARD,
    DATALOADER_ITER,
    DATALOADER_WAIT,
    DEVICE_FORWARD,
    EVAL_MODE,
    FORWARD,
    OPTIMIZER,
    SYNCHRONIZATION,
    TRAIN_MODE,
)
from sm_profiler.hook import entry, steps
from sm_profiler.hook.frames import outwards
from sm_profiler.hook.hang import HangWatch
from sm_profiler.hook.modes import STEP, ModeKeys
from sm_profiler.hook.pytorch.graphs import FIRST_STEP
from sm_profiler.hook.rest import ENOUGH
from sm_profiler.hook.sampler import phase_of
from sm_profiler.hook.steps import METER_EVERY, METER_MAX_NS, REGULAR, REST_NS, WAITED_UNRECORDED, StepTracker

STEPS = 40
TRAIN, EVAL = STEP[ModeKeys.TRAIN], STEP[ModeKeys.EVAL]
BACKWARD_OF_TORCH = torch.autograd.backward


class Loop:
    """A training loop that calls its model several times a step."""

    def __init__(self, session, calls: int = 5) -> None:
        torch.manual_seed(0)
        self.session, self.tracker, self.calls = session, session.tracker, calls
        self.model = torch.nn.Linear(2, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)
        self.records, self.inside = [], lambda: None
        session.find("pytorch")._operators.due = sys.maxsize  # whose steps are observed
        self.tracker.every = 1
        self.step()  # discovery
        self.tracker.append = self.records.append

    def step(self, x=None) -> None:
        self.optimizer.zero_grad()
        self.backward(x)
        self.optimizer.step()

    def backward(self, x=None) -> None:
        loss = 0
        for _ in range(self.calls):
            loss = loss + self.model(torch.ones(1, 2) if x is None else x[0]).sum()
            self.inside()
        loss.backward()

    def hooks(self) -> int:
        return len(self.model._forward_pre_hooks) + len(self.model._forward_hooks)

    def run(self, every: int, count: int = STEPS) -> None:
        self.tracker.every = every
        for _ in range(count):
            self.step()

    def rest(self) -> None:
        """Run until the hook rests, for many steps."""
        self.run(1 << 20, REGULAR + 3)
        assert self.tracker.rest is not None

    def found(self, name: str) -> list[tuple]:
        self.tracker.end_step()
        return [record for record in self.records if record[1] == name or record[0] == name]

    def numbers(self, name: str) -> list[int]:
        return [record[4] for record in self.found(name)]


@pytest.fixture
def loop(session, monkeypatch):
    monkeypatch.setattr(
        session.controller, "beat", lambda _written: None
    )  # it would decide how often phases are recorded
    yield Loop(session)
    assert session.guard.failures == {}


def loader(batches: int, size: int = 1) -> torch.utils.data.DataLoader:
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(batches * size, 2)), size)


def test_each_step_is_recorded_and_phases_of_every_nth(loop):
    loop.run(8)
    assert loop.numbers(TRAIN) == list(range(loop.found(TRAIN)[0][4], STEPS + 1))
    last = loop.numbers(FORWARD)[-5:]
    assert last == [STEPS] * 5
    assert set(loop.numbers(FORWARD)[-15:]) == {STEPS - 16, STEPS - 8, STEPS}
    assert loop.numbers(BACKWARD)[-3:] == loop.numbers(OPTIMIZER)[-3:] == [STEPS - 16, STEPS - 8, STEPS]


def test_steps_follow_each_other_and_do_not_overlap(loop):
    loop.run(8)
    spans = [record[2:4] for record in loop.found(TRAIN)]
    assert all(start <= end for start, end in spans)
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


def test_nothing_is_on_the_path_of_forward_and_backward(loop):
    seen = []
    loop.inside = lambda: seen.append((loop.hooks(), torch.autograd.backward is BACKWARD_OF_TORCH))
    loop.run(16, 50)
    observed, resting = [(2, False)] * 5, [(0, True)] * 5
    assert {tuple(seen[at : at + 5]) for at in range(0, len(seen), 5)} == {tuple(observed), tuple(resting)}
    assert seen.count(resting[0]) > 5 * 30
    loop.tracker.end_rest()
    assert (loop.hooks(), torch.autograd.backward is BACKWARD_OF_TORCH) == (2, False)


def test_a_rest_whose_end_was_preempted_costs_no_more_than_any_callback(loop, monkeypatch):
    loop.rest()
    times = iter((0, 40_000_000))
    monkeypatch.setattr(steps, "perf_counter_ns", lambda: next(times))
    before = loop.tracker.own_ns
    loop.tracker.end_rest()
    assert (loop.tracker.own_ns - before) * METER_EVERY <= METER_MAX_NS


def test_a_step_that_is_observed_is_compared_with_those_of_the_rest_before_it(loop):
    cpu = [0]
    loop.tracker.compared.clock = lambda: cpu[0]

    def spend() -> None:
        cpu[0] += 10 if loop.tracker.rest is not None else 110

    loop.inside = spend
    loop.run(8, 60)
    assert list(loop.tracker.compared.ns) == [5 * 100] * 6


@pytest.mark.parametrize("every", [3, 15])
@pytest.mark.parametrize("period", [8, 10])
def test_what_a_script_does_every_few_steps_is_no_cost_of_the_hook(loop, every, period):
    """A figure at each 8th step lay in each observed stretch and in no rest: 450 ms became the cost of the hook."""
    cpu, calls = [0], [0]
    loop.tracker.compared.clock = lambda: cpu[0]

    def spend() -> None:
        calls[0] += 1
        if calls[0] % (loop.calls * period) == 1:
            cpu[0] += 450_000_000
        cpu[0] += 1_000_000 if loop.tracker.rest is not None else 1_010_000

    loop.inside = spend
    loop.run(every, 600)
    found = sorted(loop.tracker.compared.ns)
    middle = found[len(found) // 4 : -(len(found) // 4)]
    assert len(found) >= ENOUGH
    assert sum(middle) / len(middle) == pytest.approx(5 * 10_000, rel=0.01)


def test_steps_are_not_compared_if_a_rest_ends_early(loop):
    for _ in range(4):
        loop.rest()
        loop.model.eval()
        loop.model.train()
        loop.tracker.end_rest()
    assert not loop.tracker.compared.ns


def test_results_are_the_same(loop, session):
    loop.run(4)
    other = Loop(session)
    entry.uninstall()
    for _ in range(STEPS):
        other.step()
    assert all(torch.equal(a, b) for a, b in zip(loop.model.parameters(), other.model.parameters(), strict=True))


@pytest.mark.parametrize("every", [1, 8])
def test_epochs_of_a_loader(loop, every):
    loop.tracker.every = every
    for _ in range(3):
        for x in loader(25):
            loop.step(x)
    assert loop.numbers(TRAIN)[-75:] == list(range(1, 76))
    waits, starts = loop.numbers(DATALOADER_WAIT), {record[4]: record[2] for record in loop.found(TRAIN)}
    assert set(loop.numbers(FORWARD)) <= set(waits)
    ends = {record[4]: record[3] for record in loop.found(DATALOADER_WAIT)}
    assert all(starts[number] >= end for number, end in ends.items() if number in starts)
    assert loop.tracker.rested or every == 1  # then only steps that are compared rest, once the budget asks for it


def test_a_batch_without_an_optimizer_step_is_a_step(loop):
    """The loop begins to accumulate gradients while the hook rests."""
    loop.tracker.every = 64
    for number, x in enumerate(loader(60), 1):
        loop.backward(x)
        if number <= 30 or number % 3 == 0:
            loop.optimizer.step()
            loop.optimizer.zero_grad()
    assert loop.tracker.rested
    assert loop.numbers(TRAIN)[-60:] == list(range(1, 61))


def test_a_loop_that_accumulates_is_observed(loop):
    loop.tracker.every = 64
    for number, x in enumerate(loader(60), 1):
        loop.backward(x)
        if number % 2 == 0:
            loop.optimizer.step()
    assert not loop.tracker.rested
    assert loop.numbers(TRAIN)[-60:] == list(range(1, 61))


def test_a_loop_with_two_optimizers_is_observed(loop):
    second = torch.optim.SGD(loop.model.parameters(), 0.1)
    loop.tracker.every = 64
    for x in loader(40):
        loop.step(x)
        second.step()
    assert not loop.tracker.rested
    assert loop.numbers(TRAIN)[-40:] == list(range(1, 41))


def test_an_optimizer_inside_another_counts_once(loop):
    class Outer(torch.optim.SGD):
        def step(self, closure=None):
            return inner.step(closure)

    inner, loop.optimizer = loop.optimizer, Outer(loop.model.parameters(), 0.1)
    loop.run(16, STEPS)
    assert loop.tracker.rested
    assert loop.numbers(TRAIN)[-STEPS:] == list(range(1, STEPS + 1))


def test_an_evaluation_with_a_loader_in_training_mode_ends_the_rest(loop):
    loop.tracker.every = 64
    for x in loader(30):
        loop.step(x)
    assert loop.tracker.rested
    with torch.no_grad():
        for x in loader(4):
            loop.model(x[0])
    loop.run(64, 3)
    assert loop.numbers(EVAL) == [0, 1, 2, 3]


def test_the_first_evaluation_without_a_loader_ends_the_rest(loop):
    loop.rest()
    loop.model.eval()
    with torch.no_grad():
        for _ in range(4):
            loop.model(torch.ones(1, 2))
    loop.model.train()
    loop.run(64, 3)
    assert loop.numbers(EVAL) == [0, 1, 2, 3]
    assert loop.numbers(TRAIN)[-3:] == list(range(REGULAR + 4, REGULAR + 7))


def evaluate(loop, batches=None) -> None:
    loop.model.eval()
    with torch.no_grad():
        for x in batches or [(torch.ones(1, 2),)] * 4:
            loop.model(x[0])
            loop.inside()
    loop.model.train()


@pytest.mark.parametrize("loads", [False, True])
def test_evaluations_after_the_first_do_not_end_the_rest(loop, loads):
    evaluate(loop)
    loop.rest()
    rest, seen = loop.tracker.rest, []
    loop.inside = lambda: seen.append((loop.hooks(), phase_of(loop.tracker)))
    for _ in range(3):
        evaluate(loop, loader(4) if loads else None)
    loop.inside = lambda: None
    loop.run(1 << 20, 2)
    assert seen == [(0, "evaluation")] * 12
    assert loop.tracker.rest is rest
    assert loop.numbers(EVAL) == list(range(4 + 3))
    assert len(loop.found(EVAL_MODE)) == len(loop.found(TRAIN_MODE)) == 4
    trained = loop.found(TRAIN)
    assert [record[4] for record in trained] == list(range(trained[0][4], trained[0][4] + len(trained)))
    (before, after) = [record for record in trained if record[4] >= trained[-2][4]]
    assert before[2] == loop.found(EVAL)[-1][3]
    assert before[3] == after[2]


def test_a_loop_that_evaluates_often_is_observed_as_rarely_as_one_that_does_not(loop):
    for _ in range(30):
        evaluate(loop)
        loop.run(16, 5)
    assert loop.tracker.rested > 100


def test_evaluations_are_seen_while_batches_are_recorded(loop):
    ranges = json.dumps({"StartStep": 0, "NumSteps": 1 << 20})
    profile = json.dumps({"ProfilingParameters": {"DataloaderProfilingConfig": ranges}})
    evaluate(loop)
    loop.rest()
    loop.session.change_profile(load_profile(profile))
    loop.tracker.end_rest()
    loop.run(1 << 20, REGULAR + 3)
    evaluate(loop, loader(4))
    assert len(loop.found(DATALOADER_ITER)) == 4


def test_steps_are_not_compared_across_an_evaluation(loop):
    cpu = [0]
    loop.tracker.compared.clock = lambda: cpu[0]

    def spend() -> None:
        cpu[0] += 10 if loop.tracker.rest is not None else 110

    for number in range(200):
        loop.inside = spend
        loop.run(8, 1)
        if number % 7 == 0:
            evaluate(loop)
    assert set(loop.tracker.compared.ns) == {5 * 100}


@pytest.mark.parametrize("often", [True, False])
def test_a_loop_on_a_device_rests(loop, session, often):
    use(session, QueueGpu())
    for _ in range(20):
        loop.run(16, 5)
        if often:
            evaluate(loop)
    assert loop.tracker.rested > 60
    loop.run(1, 3)
    devices = set(loop.numbers(DEVICE_FORWARD))
    assert devices <= set(loop.numbers(FORWARD))
    assert len(devices) >= 4
    assert loop.tracker.rested < 100


def test_only_a_switch_to_eval_mode_in_the_loop_is_recorded(loop):
    teacher = torch.nn.Linear(2, 2).eval()
    loop.records.clear()
    for _ in range(3):
        teacher.eval()
        loop.step()
    assert loop.found(EVAL_MODE) == []
    loop.model.eval()
    loop.model.eval()
    assert [record[1] for record in loop.found(EVAL_MODE)] == ["Linear"]


def test_a_model_in_eval_mode_is_evaluated_until_it_is_switched_back_or_trains(loop):
    """An evaluation may call other methods of the model than its forward, of which nothing is seen."""
    loop.rest()
    inner = torch.nn.Sequential(loop.model)
    inner.eval()
    assert phase_of(loop.tracker) == "evaluation"
    loop.model.train()
    assert phase_of(loop.tracker) == "evaluation"  # a part of the model
    inner.train(mode=True)
    assert phase_of(loop.tracker) == "outside"
    (eval_mode,), (train_mode,) = loop.found(EVAL_MODE), loop.found(TRAIN_MODE)
    assert (eval_mode[1], train_mode[1]) == ("Sequential", "Sequential")
    assert eval_mode[2] < train_mode[2]
    loop.model.eval()
    loop.step()
    assert phase_of(loop.tracker) == "outside"


def test_methods_of_modules_are_restored(loop):
    switches = [torch.nn.Module.eval, torch.nn.Module.train]
    loop.model.eval()
    loop.model.train()
    assert torch.nn.Module.train is not switches[1]
    loop.session.find("pytorch").forwards.remove()
    assert [one.__module__ for one in (torch.nn.Module.eval, torch.nn.Module.train)] == ["torch.nn.modules.module"] * 2
    assert not hasattr(torch.nn.Module.train, "__wrapped__")
    assert not hasattr(torch.nn.Module.eval, "__wrapped__")


@pytest.mark.parametrize("before", [0, 1])
def test_a_forward_ahead_of_a_step_is_recorded_with_it(loop, before):
    for _ in range(before):
        loop.step()
    loop.tracker.every = 4
    for _ in range(12):
        with torch.no_grad():
            loop.model(torch.ones(1, 2))
        loop.step()
    kept, phases = {EVAL: [], TRAIN: []}, 0
    loop.tracker.end_step()
    for record in loop.records:  # a step's record comes after those of its phases
        if record[0] in kept:
            kept[record[0]].append(phases > 0)
            phases = -1
        phases += 1
    ahead, learned = kept[EVAL], kept[TRAIN][-12:]
    assert 3 <= sum(learned) <= 7
    assert ahead == learned


def test_what_the_script_asks_for_ends_the_rest(loop):
    hook = entry.Hook(loop.session)
    loop.rest()
    hook.set_mode(entry.ModeKeys.PREDICT)
    assert loop.tracker.rest is None
    hook.set_mode(entry.ModeKeys.TRAIN)
    loop.rest()
    with hook.step():
        assert loop.tracker.rest is None


def test_batches_of_a_window_are_observed(loop):
    ranges = json.dumps({"StartStep": 0, "NumSteps": 25})
    profile = json.dumps({"ProfilingParameters": {"DataloaderProfilingConfig": ranges}})
    loop.session.change_profile(load_profile(profile))
    loop.tracker.every = 64
    for x in loader(60):
        loop.step(x)
    assert len(loop.found(DATALOADER_ITER)) >= 20
    assert loop.tracker.rested > 20


def test_the_hook_rests_once_a_window_of_python_is_over(session):
    ranges = json.dumps({"StartStep": 3, "NumSteps": 2, "ProfilerName": "cprofile"})
    session.change_profile(load_profile(json.dumps({"ProfilingParameters": {"PythonProfilingConfig": ranges}})))
    loop = Loop(session)
    loop.run(1 << 20, 3)
    assert loop.tracker.reports_forward_ends
    loop.rest()
    assert session.guard.failures == {}


def test_a_change_of_the_collectors_takes_effect_after_the_rest(loop):
    loop.rest()
    loop.session.wake()
    loop.tracker.end_rest()
    loop.run(1 << 20, 1)
    assert loop.tracker.settled is ModeKeys.TRAIN


def test_operators_are_counted_in_steps_that_are_observed(session, monkeypatch):
    monkeypatch.setattr(session.controller, "beat", lambda _written: None)
    loop = Loop(session)
    operators = session.find("pytorch")._operators
    operators.due = FIRST_STEP
    loop.run(16, 20)
    assert loop.tracker.rest is None
    loop.run(16, 10)
    assert operators.due > FIRST_STEP
    assert loop.tracker.rest is not None


def test_other_threads_see_the_running_step(loop):
    loop.rest()
    step, start_ns = loop.tracker.latest
    assert (step, loop.tracker.train_number) == (REGULAR + 4, REGULAR + 3)
    loop.step()
    assert loop.tracker.latest[0] == step + 1
    assert loop.tracker.progress[1] >= loop.tracker.latest[1] > start_ns


@pytest.mark.parametrize("every", [1, 1 << 20])
def test_a_hang_is_seen_as_early_as_without_a_rest(loop, monkeypatch, every):
    now, written = [1000.0], []
    watch = HangWatch(loop.session, clock=lambda: now[0])
    monkeypatch.setattr(watch, "_write", lambda at, state, **_: written.append((at, state)))

    def look(seconds: int) -> None:
        for _ in range(seconds):
            now[0] += 1
            watch.beat()

    for _ in range(20):
        loop.run(every, 1)
        look(1)
    assert (loop.tracker.rest is not None) == (every > 1)
    look(59)
    assert not written
    look(2)
    loop.run(every, 1)
    look(1)
    assert [state for _, state in written] == ["hanging", "resumed"]
    assert written[0][0] == 1000 + 20 + 60


def test_the_number_of_the_step_in_which_a_training_hangs(loop):
    loop.rest()
    loop.run(1 << 20, 3)
    assert loop.tracker.latest_number == loop.tracker.train_number == REGULAR + 6


def test_a_rest_goes_on_when_its_steps_are_recorded(loop, monkeypatch):
    monkeypatch.setattr("sm_profiler.hook.pytorch.adapter.REST_NS", 0)
    loop.rest()
    before = len(loop.records)
    loop.run(1 << 20, 5)
    assert loop.tracker.rest is not None
    assert [record[0] for record in loop.records[before:]] == [TRAIN] * 5
    assert loop.numbers(TRAIN) == list(range(REGULAR + 9))


def test_a_rest_that_goes_on_reads_its_loader(loop, monkeypatch):
    monkeypatch.setattr("sm_profiler.hook.pytorch.adapter.REST_NS", 0)
    loop.tracker.every = 1 << 20
    for x in loader(40):
        loop.step(x)
    assert loop.numbers(TRAIN)[-40:] == list(range(1, 41))
    assert loop.tracker.rested == 40 - REGULAR


def test_the_sampler_sees_phases_on_the_stack(loop):
    seen = []

    def look(*_):
        if loop.tracker.rest is not None:
            seen.append(phase_of(loop.tracker, outwards(sys._getframe())))

    class Sees(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            look()
            return x.clone()

        @staticmethod
        def backward(_, gradient):
            look()
            return gradient

    class Batches(torch.utils.data.TensorDataset):
        def __getitem__(self, index):
            look()
            return super().__getitem__(index)

    usual = loop.model.forward
    loop.model.forward, loop.calls = lambda x: Sees.apply(usual(x)), 1
    loop.optimizer.register_step_pre_hook(look)
    loop.inside, loop.tracker.every = look, 1 << 20
    for x in torch.utils.data.DataLoader(Batches(torch.ones(20, 2))):
        loop.step(x)
    assert set(seen) - {"between", "outside"} == {"wait", "forward", "backward", "optimizer"}


def test_hooks_that_the_script_adds_meanwhile_stay_and_can_be_removed(loop):
    calls = []
    loop.rest()
    handle = loop.model.register_forward_hook(lambda *_: calls.append(1))
    loop.run(1 << 20, 2)
    assert len(calls) == 10
    loop.tracker.end_rest()
    loop.run(1 << 20, 2)
    assert len(calls) == 20
    handle.remove()
    loop.run(1 << 20, 2)
    assert len(calls) == 20
    loop.tracker.end_rest()
    assert loop.hooks() == 2


def test_a_copy_made_meanwhile_has_no_hooks(loop):
    loop.rest()
    made = copy.deepcopy(loop.model)
    loop.tracker.end_rest()
    assert (len(made._forward_hooks), loop.hooks()) == (0, 2)
    assert made(torch.ones(1, 2)).shape == (1, 2)


def test_an_exception_in_a_forward_reaches_the_script(loop):
    def fails():
        raise KeyError("mine")

    loop.rest()
    loop.inside = fails
    with pytest.raises(KeyError, match="mine"):
        loop.step()
    loop.inside = lambda: None
    loop.run(8, 20)
    assert loop.hooks() == 2 or loop.tracker.rest is not None


def test_an_exception_of_the_loader_reaches_the_script(loop):
    class Fails(torch.utils.data.TensorDataset):
        def __getitem__(self, index):
            if index == 20:
                raise KeyError("mine")
            return super().__getitem__(index)

    loop.tracker.every = 1 << 20
    batches = iter(torch.utils.data.DataLoader(Fails(torch.ones(30, 2))))
    for _ in range(20):
        loop.step(next(batches))
    with pytest.raises(KeyError, match="mine"):
        next(batches)
    assert loop.tracker.rested
    assert (loop.tracker.rest, loop.tracker.in_fetch, loop.hooks()) == (None, 0, 2)
    assert loop.numbers(TRAIN)[-20:] == list(range(1, 21))


def test_without_an_optimizer_every_forward_counts(session):
    model = torch.nn.Linear(2, 2)
    session.tracker.every = 64
    for _ in range(20):
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
    assert not session.tracker.rested
    assert session.guard.failures == {}


def test_uninstalling_during_a_rest_leaves_nothing(loop):
    loop.rest()
    entry.uninstall()
    assert (loop.hooks(), torch.autograd.backward) == (0, BACKWARD_OF_TORCH)
    loop.run(1, 3)


def test_closing_during_a_rest_records_the_steps_that_have_ended(loop):
    loop.rest()
    loop.session.close()
    assert [record[4] for record in loop.records if record[1] == TRAIN][-REGULAR:] == list(range(4, REGULAR + 4))


def test_a_forked_child_is_observed(loop):
    loop.rest()
    child = os.fork()
    if not child:
        seen = loop.tracker.rest is None and loop.hooks() == 2
        os._exit(0 if seen else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert loop.tracker.rest is not None


def test_global_hooks_of_the_script_see_its_own_modules_only(loop):
    seen = set()
    handle = torch.nn.modules.module.register_module_forward_hook(lambda module, *_: seen.add(id(module)))
    try:
        loop.run(1)
    finally:
        handle.remove()
    assert seen == {id(loop.model)}


# loops that mark their steps


def marked(every: int = 100) -> tuple[StepTracker, list[tuple]]:
    """Return a tracker whose second step, which is marked, may rest, and its records."""
    records: list[tuple] = []
    tracker = StepTracker(records.append)
    tracker.claim("keras")
    tracker.settled, tracker.every = ModeKeys.TRAIN, every
    tracker.begin_step(0, gradients=True, mode=ModeKeys.TRAIN)
    tracker.end_step(5)
    return tracker, records


def test_marked_steps_are_recorded_when_the_rest_ends():
    tracker, records = marked()
    rest = tracker.begin_marked_rest(10, lambda: None, lambda _stack: "")
    assert phase_of(tracker) == "between"
    rest.finished.append(15)
    assert phase_of(tracker) == "outside"
    rest.ends.append(20)
    assert tracker.latest == (2, 20)
    assert tracker.train_number == 2
    rest.finished.append(28)
    tracker.end_rest()
    assert [record[2:] for record in records[1:]] == [(10, 15, 1, WAITED_UNRECORDED), (20, 28, 2, WAITED_UNRECORDED)]
    assert not tracker.is_open
    tracker.begin_step(30, gradients=True, mode=ModeKeys.TRAIN)
    assert (tracker.global_step, tracker.number) == (3, 3)


def test_a_marked_step_that_runs_when_the_rest_ends_stays_open():
    tracker, records = marked()
    rest = tracker.begin_marked_rest(10, lambda: None, lambda _stack: "")
    rest.finished.append(15)
    rest.ends.append(20)
    tracker.end_rest()
    assert tracker.is_open
    assert len(records) == 2
    tracker.end_step(29)
    assert records[-1][2:] == (20, 29, 2, WAITED_UNRECORDED)


def test_a_marked_step_that_found_no_batch_does_not_count():
    tracker, records = marked()
    rest = tracker.begin_marked_rest(10, lambda: None, lambda _stack: "")
    rest.finished.append(15)
    rest.ends.append(20)
    tracker.cancel_step()
    tracker.begin_step(30, gradients=True, mode=ModeKeys.TRAIN)
    assert (tracker.global_step, tracker.number, len(records)) == (2, 2, 2)


def test_a_marked_rest_ends_before_the_next_step_that_is_observed_and_after_a_second():
    tracker, _ = marked(every=4)
    rest = tracker.begin_marked_rest(10, lambda: None, lambda _stack: "")
    assert (rest.steps, rest.until) == (2, 10 + REST_NS)
    rest.ends.append(20)
    rest.finished += [15, 25]
    tracker.end_rest()
    rest = tracker.begin_marked_rest(30, lambda: None, lambda _stack: "")  # the step that the next one is compared with
    assert rest.steps == 1
    rest.finished.append(35)
    tracker.end_rest()
    assert tracker.begin_marked_rest(40, lambda: None, lambda _stack: "") is None


def test_the_times_of_data_parallel_are_read_now_and_then(loop, tmp_path):
    distributed = torch.distributed
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", world_size=1, rank=0)
    try:
        loop.model = torch.nn.parallel.DistributedDataParallel(loop.model)
        loop.session.find("pytorch").forwards.discover()
        for _ in range(80):
            loop.step()
        found = [record[5] for record in loop.found(SYNCHRONIZATION)]
        assert 2 <= len(found) <= 4
        assert found[0]["passes"] == 10
        assert found[0]["communication_us"] > 0
        assert found[0]["ranks"] == 1
    finally:
        distributed.destroy_process_group()
