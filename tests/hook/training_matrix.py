"""Train small networks in many kinds of loops, and print what the script itself counted: run by test_hook_training.py.

    python training_matrix.py off|on|raising FOLDER [SCENARIO …]

Prints one JSON object per scenario: the numbers of steps, forwards, backwards, optimizer steps and batches, a digest of
all losses, parameters, gradients and random states, and failures.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

torch.set_num_threads(1)


class Truth:
    def __init__(self) -> None:
        self.counts = {"train": 0, "eval": 0, "forward": 0, "backward": 0, "optimizer": 0, "wait": 0}
        self.digest = hashlib.sha256()

    def __deepcopy__(self, _memo) -> Truth:
        return self  # a copy of a model that counts counts in the same place

    def add(self, **counts: int) -> None:
        for name, count in counts.items():
            self.counts[name] += count

    def see(self, *tensors: torch.Tensor) -> None:
        for tensor in tensors:
            self.digest.update(tensor.detach().contiguous().numpy().tobytes())

    def see_all(self, *models: nn.Module) -> None:
        for model in models:
            self.see(*model.state_dict().values())
            self.see(*(p.grad for p in model.parameters() if p.grad is not None))
        self.see(torch.get_rng_state())
        self.digest.update(repr((random.getstate(), np.random.get_state()[1].tolist())).encode())  # noqa: NPY002


class Net(nn.Module):
    def __init__(self, inputs: int = 8, outputs: int = 4) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(16, outputs)

    def forward(self, x):
        return self.head(self.body(x))


def data(rows: int = 48) -> TensorDataset:
    return TensorDataset(torch.randn(rows, 8), torch.randint(0, 4, (rows,)))


def loader(rows: int = 48, **options) -> DataLoader:
    return DataLoader(data(rows), batch_size=8, shuffle=True, **options)


LOSS = nn.CrossEntropyLoss()


def train(
    truth: Truth, model, batches, optimizer, *, accumulate: int = 1, run=None
) -> None:  # a loop has that many parts
    run = model if run is None else run
    for number, (x, y) in enumerate(batches, 1):
        loss = LOSS(run(x), y) / accumulate
        loss.backward()
        truth.add(train=1, forward=1, backward=1, wait=1)
        if number % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
            truth.add(optimizer=1)
        truth.see(loss)


def plain(truth, epochs: int = 2, **options):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batches = loader(**options)
    for _ in range(epochs):
        train(truth, model, batches, optimizer)
    truth.see_all(model)


def workers(truth):
    plain(truth, num_workers=2)


def persistent_workers(truth):
    plain(truth, num_workers=1, persistent_workers=True)


def spawned_workers(truth):
    plain(truth, epochs=1, num_workers=1, multiprocessing_context="spawn")  # each worker imports torch


def accumulation(truth):
    model = Net()
    train(truth, model, loader(), torch.optim.Adam(model.parameters()), accumulate=3)
    truth.see_all(model)


def without_loader(truth):
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = data(16).tensors
    for _ in range(7):
        optimizer.zero_grad()
        loss = LOSS(model(x), y)
        loss.backward()
        optimizer.step()
        truth.see(loss)
        truth.add(train=1, forward=1, backward=1, optimizer=1)
    truth.see_all(model)


def gan(truth):
    generator, critic = Net(4, 8), Net(8, 1)
    first, second = torch.optim.Adam(generator.parameters()), torch.optim.Adam(critic.parameters())
    for x, _ in loader():
        second.zero_grad()
        fake = generator(torch.randn(8, 4))
        loss = critic(fake.detach()).mean() - critic(x).mean()
        loss.backward()
        second.step()
        first.zero_grad()
        other = -critic(fake).mean()
        other.backward()
        first.step()
        truth.see(loss, other)
        truth.add(train=1, forward=4, backward=2, optimizer=2, wait=1)
    truth.see_all(generator, critic)


def rnn(truth):
    cell, head = nn.GRUCell(8, 8), nn.Linear(8, 4)
    optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], 0.1)
    for x, y in loader():
        state = torch.zeros(8, 8)
        for _ in range(3):
            state = cell(x, state)
        loss = LOSS(head(state), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        truth.see(loss)
        truth.add(train=1, forward=4, backward=1, optimizer=1, wait=1)
    truth.see_all(cell, head)


def evaluation(truth):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        train(truth, model, loader(), optimizer)
        model.eval()
        with torch.no_grad():
            for x, y in loader(24):
                truth.see(LOSS(model(x), y))
                truth.add(eval=1, forward=1, wait=1)
        model.train()
    truth.see_all(model)


def scaler_skips(truth):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for number, (x, y) in enumerate(loader()):
        optimizer.zero_grad()
        loss = LOSS(model(x), y)
        loss.backward()
        if number % 3:  # what a GradScaler does where gradients overflow
            optimizer.step()
            truth.add(optimizer=1)
        truth.see(loss)
        truth.add(train=1, forward=1, backward=1, wait=1)
    truth.see_all(model)


def checkpointed(truth):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for reentrant in (False, True):
        for x, y in loader():
            x.requires_grad_()
            loss = LOSS(model.head(checkpoint(model.body, x, use_reentrant=reentrant)), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            truth.see(loss)
            truth.add(train=1, forward=2, backward=1, optimizer=1, wait=1)
    truth.see_all(model)


def lbfgs(truth):
    model = Net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    for x, y in loader(24):

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = LOSS(model(x), y)
            loss.backward()
            truth.add(forward=1, backward=1, optimizer=1)  # the optimizer's own work lies behind each backward
            return loss

        truth.see(optimizer.step(closure))
        truth.add(train=1, wait=1)
    truth.see_all(model)


class Stream(IterableDataset):
    def __iter__(self):
        generator = torch.Generator().manual_seed(1)
        for _ in range(40):
            yield torch.randn(8, generator=generator), torch.tensor(1)


def iterable_and_early_break(truth):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        for number, (x, y) in enumerate(DataLoader(Stream(), batch_size=8)):
            train(Quiet(truth), model, [(x, y)], optimizer)
            truth.add(train=1, forward=1, backward=1, optimizer=1, wait=1)
            if number == 2:
                break
    truth.see_all(model)


class Quiet:
    """Takes the digest, not the counts: the caller counts."""

    def __init__(self, truth) -> None:
        self.see, self.add = truth.see, lambda **_: None


def exceptions(truth):
    """A forward, a dataset and an optimizer that raise; the loop goes on behind each."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    class Bad(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, _):
            raise KeyError("mine")

    with contextlib.suppress(KeyError):
        Bad()(torch.ones(1))
    truth.add(forward=1, train=1)  # a loop without a loader so far: this was its first forward
    train(truth, model, loader(), optimizer)

    class Broken(TensorDataset):
        def __getitem__(self, index):
            raise OSError("no such record")

    with contextlib.suppress(OSError):
        next(iter(DataLoader(Broken(torch.ones(4)), batch_size=2)))
    train(truth, model, loader(), optimizer)
    truth.see_all(model)


def fetched_ahead(truth):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batches = iter(loader())
    ahead = next(batches)
    while ahead is not None:
        now, ahead = ahead, next(batches, None)
        train(truth, model, [now], optimizer)
    truth.see_all(model)


class Encoded(TensorDataset):
    """A dataset that runs a model for each record."""

    def __init__(self, *tensors) -> None:
        super().__init__(*tensors)
        self.encoder = nn.Linear(8, 8)

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        with torch.no_grad():
            return self.encoder(x), y


def model_in_the_dataset(truth):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for count in (0, 1):
        train(truth, model, DataLoader(Encoded(*data().tensors), batch_size=8, num_workers=count), optimizer)
    truth.see_all(model)


def compiled(truth):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    train(truth, model, loader(), optimizer, run=torch.compile(model, backend="aot_eager"))
    truth.see_all(model)


def copied(truth):
    """The model is copied, pickled and scripted in the middle of the training."""
    import copy
    import io

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for x, y in loader():  # a checkpoint after each step, also inside the windows
        train(Quiet(truth), model, [(x, y)], optimizer)
        truth.add(train=1, forward=1, backward=1, optimizer=1, wait=1)
        torch.save(model, io.BytesIO())
        copy.deepcopy(model)(x)  # after the first optimizer step a copy is not traced
    assert not copy.deepcopy(model)._forward_hooks
    buffer = io.BytesIO()
    torch.save(model, buffer)
    assert b"sm_profiler" not in buffer.getvalue()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(model)
    train(truth, model, loader(), optimizer)
    truth.see_all(model)


SCENARIOS = [
    plain, workers, persistent_workers, spawned_workers, accumulation, without_loader, gan, rnn, evaluation, scaler_skips,
    checkpointed, lbfgs, iterable_and_early_break, exceptions, fetched_ahead, copied,
    model_in_the_dataset, compiled,
]  # fmt: skip


def run(scenario, mode: str, folder: Path) -> dict:
    truth = Truth()
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)  # noqa: NPY002
    if mode != "off":
        window = '{"StartStep": 2, "NumSteps": 3, "MetricsRegex": ".*", }'
        parameters = {
            "LocalPath": str(folder / scenario.__name__),
            "DataloaderProfilingConfig": window,
            "DetailedProfilingConfig": '{"StartStep": 1, "NumSteps": 2, }',
            "PythonProfilingConfig": '{"StartStep": 3, "NumSteps": 2, "ProfilerName": "cprofile", "cProfileTimer": "total_time", }',
        }
        os.environ["SM_PROFILER_CONFIG"] = json.dumps({"ProfilingParameters": parameters})
        from sm_profiler.hook import entry

        entry.install()
    try:
        scenario(truth)
    finally:
        if mode != "off":
            hook = entry.get_hook(create=False)
            entry.uninstall()
    report = {"scenario": scenario.__name__, **truth.counts, "digest": truth.digest.hexdigest()}
    if mode != "off":
        report["failures"] = hook.session.guard.failures
    return report


def break_everything() -> None:
    """Make the hook raise at every call."""
    from sm_profiler.hook import recorder, steps, windows
    from sm_profiler.hook.pytorch import forward, loader

    def broken(*_args, **_kwargs):
        raise RuntimeError("the hook is broken")

    names = (
        "fetch_begins",
        "fetch_ends",
        "forward_begins",
        "forward_ends",
        "backward_begins",
        "backward_ends",
        "begin_step",
    )
    for name in (*names, "optimizer_begins", "optimizer_ends", "end_step"):
        setattr(steps.StepTracker, name, broken)
    for owner in (recorder.Recorder, windows.Window):
        for name in [name for name in vars(owner) if callable(getattr(owner, name)) and not name.startswith("__")]:
            setattr(owner, name, broken)
    for name in ("model_name", "is_stale", "step_begins", "settle"):
        setattr(forward.Forwards, name, broken)
    for name in ("_stream_of", "_before_fetch", "_created", "_collect", "_workers_end"):
        setattr(loader.DataLoaderCollector, name, broken)


if __name__ == "__main__":
    mode, folder, wanted = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    if mode == "raising":
        break_everything()
    for scenario in SCENARIOS:
        if not wanted or scenario.__name__ in wanted:
            sys.stdout.write(json.dumps(run(scenario, mode, folder)) + "\n")
