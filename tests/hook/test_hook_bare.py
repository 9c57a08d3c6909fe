"""Bare steps: the same loops with them and without are recorded as the same steps, at the same times."""

import copy
import json
import sys
import threading
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from sm_profiler.hook import entry, steps
from sm_profiler.hook.other_threads import outwards
from sm_profiler.hook.pytorch import adapter, forward, loader
from sm_profiler.hook.sampler import phase_of

EVERY = 8


class Clock:
    """A clock that only a loop moves on."""

    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now

    def tick(self, ns: int) -> None:
        self.now += ns


class Model(torch.nn.Module):
    """A layer whose forward takes time."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.layer, self.tick = torch.nn.Linear(2, 1), clock.tick

    def forward(self, x):
        self.tick(300)
        return self.layer(x).sum()


class Data(torch.utils.data.Dataset):
    """Rows that take time."""

    def __init__(self, clock: Clock, rows: int, inside=lambda: None) -> None:
        self.clock, self.rows, self.inside = clock, rows, inside

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index):
        if index >= self.rows:
            raise IndexError
        self.clock.tick(70)
        self.inside()
        return torch.ones(2)


class Run:
    """Model, optimizer and time of a loop."""

    def __init__(self, clock: Clock, hook) -> None:
        torch.manual_seed(1)
        self.clock, self.hook = clock, hook
        self.model = Model(clock)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01, momentum=0.9)

    def update(self, loss, optimizer=None) -> None:
        self.clock.tick(20)
        loss.backward()
        self.clock.tick(400)
        (optimizer or self.optimizer).step()
        (optimizer or self.optimizer).zero_grad()
        self.clock.tick(30)

    def step(self, x=None) -> None:
        self.update(self.model(torch.ones(1, 2) if x is None else x))

    def evaluate(self, count: int = 3) -> None:
        self.model.eval()
        with torch.no_grad():
            for _ in range(count):
                self.model(torch.ones(1, 2))
        self.model.train()

    def batches(self, rows: int, **more) -> DataLoader:
        return DataLoader(Data(self.clock, rows, **more), batch_size=1)


LOOPS = {}


def loop(function):
    LOOPS[function.__name__] = function
    return function


@loop
def plain(run):
    for _ in range(60):
        run.step()


@loop
def several_forwards(run):
    for _ in range(40):
        run.update(run.model(torch.ones(1, 2)) + run.model(torch.ones(1, 2)))


@loop
def with_loader(run):
    for _ in range(3):
        for x in run.batches(30):
            run.step(x)


@loop
def with_workers(run):
    data = TensorDataset(torch.ones(30, 2))
    for _ in range(2):
        for (x,) in DataLoader(data, num_workers=1):
            run.step(x)


@loop
def fetched_ahead(run):
    batches = iter(run.batches(50))
    following = next(batches)
    for batch in batches:
        x, following = following, batch
        run.step(x)


@loop
def skipped_batches(run):
    for number, x in enumerate(run.batches(60)):
        if number % 13 != 5:
            run.step(x)


@loop
def skipped_updates(run):
    for number, x in enumerate(run.batches(60)):
        loss = run.model(x)
        if number % 11 == 7:
            loss.backward()
        elif number % 17 != 9:
            run.update(loss)


@loop
def evaluation(run):
    for number in range(60):
        run.step()
        if number % 20 == 12:
            run.evaluate()


@loop
def evaluation_with_loaders(run):
    for _ in range(2):
        for number, x in enumerate(run.batches(40)):
            run.step(x)
            if number % 20 == 13:
                with torch.no_grad():
                    for y in run.batches(4):
                        run.model(y)


@loop
def evaluation_before_the_update(run):
    for number in range(50):
        loss = run.model(torch.ones(1, 2))
        loss.backward()
        if number % 16 == 11:
            run.evaluate(1)
        run.clock.tick(40)
        run.optimizer.step()


@loop
def two_optimizers(run):
    other = Model(run.clock)
    second = torch.optim.SGD(other.parameters(), 0.01)
    for number, x in enumerate(run.batches(60)):
        run.step(x)
        if number > 30:
            run.update(other(x), second)


@loop
def another_optimizer_in_turn(run):
    second = torch.optim.SGD(run.model.parameters(), 0.01)
    for number in range(60):
        run.update(run.model(torch.ones(1, 2)), second if number % 9 == 4 else None)


@loop
def accumulation(run):
    for number, x in enumerate(run.batches(60)):
        if number < 30 or number % 4 == 3:
            run.step(x)
        else:
            run.model(x).backward()


@loop
def accumulation_without_a_loader(run):
    for _ in range(30):
        run.model(torch.ones(1, 2)).backward()
        run.step()


@loop
def closures(run):
    optimizer = torch.optim.LBFGS(run.model.parameters(), max_iter=3, lr=0.01)

    def closure():
        optimizer.zero_grad()
        loss = run.model(torch.ones(1, 2)) ** 2
        loss.backward()
        return loss

    for number in range(40):
        if number < 20:
            run.step()
        else:
            optimizer.step(closure)


@loop
def from_one_loader_to_another(run):
    first, second = iter(run.batches(40)), iter(run.batches(40))
    for number in range(60):
        run.step(next(first if number < 27 else second))


@loop
def without_the_loader_after_a_while(run):
    for number, x in enumerate(run.batches(60)):
        run.step(x)
        if number == 30:
            break
    for _ in range(30):
        run.step()


@loop
def exceptions_in_the_forward(run):
    def fails(_):
        raise KeyError("mine")

    for number in range(60):
        run.model.forward = fails if number % 14 == 10 else Model.forward.__get__(run.model)
        try:
            run.step()
        except KeyError:
            run.clock.tick(5)


@loop
def exceptions_in_the_loader(run):
    calls = []

    def fails():
        calls.append(1)
        if len(calls) % 23 == 22:
            raise KeyError("mine")

    for _ in range(6):
        try:
            for x in run.batches(30, inside=fails):
                run.step(x)
        except KeyError:
            run.clock.tick(5)


@loop
def marked_steps(run):
    for number in range(60):
        if number < 30:
            run.step()
        else:
            with run.hook.step():
                run.step()


@loop
def forced_modes(run):
    for number in range(60):
        if number in (25, 40):
            run.hook.set_mode(entry.ModeKeys.EVAL if number == 25 else entry.ModeKeys.TRAIN)
        run.step()


@loop
def changed_configuration(run):
    for number in range(60):
        run.step()
        if number in (20, 33):
            run.hook.session.change_profile(run.hook.session.profile)


@loop
def rediscovered(run):
    for number, x in enumerate(run.batches(60)):
        run.step(x)
        if number % 21 == 15:
            run.hook.session.find("pytorch").forwards.discover()


@loop
def checkpoints(run):
    from torch.utils.checkpoint import checkpoint

    for number in range(50):
        inside = checkpoint(run.model, torch.ones(1, 2, requires_grad=True), use_reentrant=number % 15 == 14)
        run.update(inside)


@loop
def forwards_in_the_backward(run):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return x * 2

        @staticmethod
        def backward(_, gradient):
            run.model(torch.ones(1, 2))
            return gradient * 2

    for _ in range(40):
        run.update(Double.apply(run.model(torch.ones(1, 2))))


@loop
def a_forward_on_another_thread(run):
    for number in range(50):
        run.step()
        if number % 9 == 5:
            other = threading.Thread(target=run.evaluate)
            other.start()
            other.join()


@loop
def hooks_of_the_script(run):
    handle = None
    for number in range(60):
        run.step()
        if number == 20:
            handle = run.model.register_forward_pre_hook(lambda *_: None)
        if number == 40:
            handle.remove()


@loop
def copies(run):
    for number in range(40):
        run.step()
        if number % 10 == 6:
            copy.deepcopy(run.model)(torch.ones(1, 2))


@loop
def a_wrapper_of_the_backward(run):
    inner = torch.autograd.backward

    def wrapped(*args, **kwargs):
        return inner(*args, **kwargs)

    torch.autograd.backward = wrapped
    try:
        plain(run)
    finally:
        torch.autograd.backward = inner


@loop
def a_compiled_function(run):
    double = torch.compile(lambda x: x * 2, backend="eager")
    for number in range(40):
        run.step()
        if number == 20:
            double(torch.ones(2))


@pytest.fixture
def record(tmp_path, monkeypatch):
    """Return the steps of a loop, with bare steps or without, how many were bare, and the parameters that result."""

    def run(function, plain_steps: int):
        clock = Clock()
        monkeypatch.setenv("SM_PROFILER_CONFIG", json.dumps({"ProfilingParameters": {"LocalPath": str(tmp_path)}}))
        for module in (steps, adapter, forward, loader):
            monkeypatch.setattr(module, "perf_counter_ns", clock)
        monkeypatch.setattr(entry, "time", SimpleNamespace(perf_counter_ns=clock))
        monkeypatch.setattr(steps, "PLAIN", plain_steps)
        hook = entry.install()
        try:
            tracker, records, bare = hook.session.tracker, [], []
            monkeypatch.setattr(hook.session.controller, "beat", lambda _: None)
            tracker.append, tracker.every = records.append, EVERY
            update = tracker.bare_update
            monkeypatch.setattr(tracker, "bare_update", lambda: bare.append(1) or update())
            made = Run(clock, hook)
            function(made)
            tracker.end_bare()
            tracker.end_step()
            found = [(r[0], r[4], r[2]) for r in records if r[0].startswith("Step")]
            assert hook.session.guard.failures == {}
            counts = dict(tracker.counts), tracker.global_step
        finally:
            entry.uninstall()
        return found, counts, len(bare), [one.tolist() for one in made.model.parameters()]

    return run


@pytest.mark.parametrize("name", LOOPS)
def test_steps_are_the_same(name, record):
    usual, counts, none, results = record(LOOPS[name], 10**9)
    found, bare_counts, bare, same = record(LOOPS[name], 2)
    assert not none
    assert found == usual
    assert bare_counts == counts
    assert same == results
    if name != "accumulation_without_a_loader":
        assert bare >= 5


def test_a_plain_loop_is_bare_but_for_the_recorded_steps(record):
    assert record(plain, 2)[2] >= 40


def test_phases_of_bare_steps_are_seen_on_the_stack(session):
    seen, tracker = [], session.tracker

    def look() -> None:
        if tracker.bare:
            seen.append(phase_of(tracker, outwards(sys._getframe())))

    class Looking(torch.nn.Linear):
        def forward(self, x):
            look()
            return super().forward(x)

    model = Looking(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    hooked = model.weight.register_hook(lambda _: look())
    tracker.append, tracker.every = [].append, 64
    for _ in range(20):
        loss = model(torch.ones(1, 2)).sum()
        look()
        loss.backward()
        optimizer.step()
        look()
    hooked.remove()
    assert seen[-4:] == ["forward", "between", "backward", "outside"]


def test_a_training_on_another_thread_goes_on_there(session):
    tracker, records = session.tracker, []
    tracker.append, tracker.every = records.append, 64
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def train() -> None:
        for _ in range(20):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()

    train()
    assert tracker.bare
    other = threading.Thread(target=train)
    other.start()
    other.join()
    tracker.end_bare()
    tracker.end_step()
    assert session.guard.failures == {}
    assert 38 <= sum(record[0].startswith("Step") for record in records) <= 40


def test_uninstalling_between_bare_steps_leaves_nothing(session):
    backward = session.find("pytorch")._backward
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    session.tracker.append, session.tracker.every = [].append, 64
    for _ in range(8):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert session.tracker.bare
    entry.uninstall()
    assert torch.autograd.backward is backward
    assert len(model._forward_hooks) + len(model._forward_pre_hooks) == 0
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
