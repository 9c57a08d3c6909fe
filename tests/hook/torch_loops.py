"""Loops in plain PyTorch as it is used today, for framework_loops.py: mixed precision, several processes, compiled models."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader
from training_matrix import LOSS, Net, Truth, data


class Counted(Net):
    """Counts its own calls."""

    def __init__(self, truth: Truth) -> None:
        super().__init__()
        self.truth = truth

    def forward(self, x):
        self.truth.add(forward=1)
        return super().forward(x)


class Batches(torch.utils.data.Sampler):
    """Counts the batches that a loader asks for."""

    def __init__(self, truth: Truth, rows: int) -> None:
        super().__init__()
        self.truth, self.rows = truth, rows

    def __len__(self) -> int:
        return self.rows // 8

    def __iter__(self):
        order = torch.randperm(self.rows).tolist()
        for start in range(0, self.rows, 8):
            self.truth.add(wait=1)
            yield order[start : start + 8]


def counted_loader(truth: Truth, rows: int) -> DataLoader:
    return DataLoader(data(rows), batch_sampler=Batches(truth, rows))


# one process


def scaled(truth: Truth, folder: Path) -> None:
    """autocast, and a GradScaler that skips an update whose gradients overflow."""
    for dtype, overflow in ((torch.bfloat16, None), (torch.float16, 3)):
        model = Counted(truth)
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("cpu", enabled=dtype is torch.float16)
        for number, (x, y) in enumerate(counted_loader(truth, 56)):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast("cpu", dtype=dtype):
                loss = LOSS(model(x), y)
            scaler.scale(loss * (float("inf") if number == overflow else 1.0)).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            truth.see(loss)
            truth.add(train=1, backward=1, optimizer=int(number != overflow))
        truth.see_all(model)


def lbfgs_without_loader(truth: Truth, folder: Path) -> None:
    """One step an optimizer step, however often that calls the model."""
    model = Counted(truth)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")
    x, y = data(16).tensors

    def closure():
        optimizer.zero_grad()
        loss = LOSS(model(x), y)
        loss.backward()
        truth.add(backward=1, optimizer=1)  # the optimizer's own work lies behind each backward
        return loss

    for _ in range(4):
        truth.see(optimizer.step(closure))
        truth.add(train=1)
    truth.see_all(model)


def by_hand(truth: Truth, folder: Path) -> None:
    """Neither a loader nor an optimizer: parameters are written in three ways, with an evaluation in between."""
    model = Counted(truth)
    x, y = data(16).tensors
    for number in range(6):
        loss = LOSS(model(x), y)
        loss.backward()
        for parameter in model.parameters():
            if number % 2:
                parameter.data -= 0.1 * parameter.grad
            else:
                with torch.no_grad():
                    parameter.sub_(0.1 * parameter.grad)
        model.zero_grad()
        truth.see(loss)
        truth.add(train=1, backward=1)
        if number == 3:
            with torch.no_grad():
                truth.see(LOSS(model(x), y))
            truth.add(eval=1)
    truth.see_all(model)


def gradients_as_functions(truth: Truth, folder: Path) -> None:
    """torch.autograd.grad, two forwards a step."""
    model = Counted(truth)
    x, y = data(16).tensors
    for _ in range(6):
        loss = LOSS(model(x), y) + LOSS(model(-x), y)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.sub_(gradient, alpha=0.1)
        truth.see(loss)
        truth.add(train=1)
    truth.see_all(model)


def alternating(truth: Truth, folder: Path) -> None:
    """An evaluation of one batch of a second loader after every third training batch; both iterators stay alive."""
    model = Counted(truth)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    held_out = iter(counted_loader(truth, 48))
    for number, (x, y) in enumerate(counted_loader(truth, 56)):
        loss = LOSS(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        truth.see(loss)
        truth.add(train=1, backward=1, optimizer=1)
        if number % 3 == 2:
            with torch.no_grad():
                other, label = next(held_out)
                truth.see(LOSS(model(other), label))
            truth.add(eval=1)
    truth.see_all(model)


def averaged(truth: Truth, folder: Path) -> None:
    """An average of the weights is evaluated beside the model, with the same loader."""
    model = Counted(truth)
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    held_out = counted_loader(truth, 24)
    for _ in range(2):
        model.train()
        for x, y in counted_loader(truth, 48):
            loss = LOSS(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            average.update_parameters(model)
            truth.see(loss)
            truth.add(train=1, backward=1, optimizer=1)
        for each in (model, average):
            each.eval()
            with torch.no_grad():
                for x, y in held_out:
                    truth.see(LOSS(each(x), y))
                    truth.add(eval=1)
    truth.see_all(model, average)


# several processes


def sharded(truth: Truth, folder: Path) -> None:
    """FSDP 2: accumulation, clipping, an evaluation."""
    try:
        from torch.distributed.fsdp import fully_shard
    except ImportError:  # before PyTorch 2.6
        from torch.distributed._composable.fsdp import fully_shard

    with process_group(folder):
        model = Counted(truth)
        fully_shard(model.body)
        fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters())
        for number, (x, y) in enumerate(counted_loader(truth, 56)):
            model.set_requires_gradient_sync(number % 2 == 1)
            loss = LOSS(model(x), y)
            loss.backward()
            truth.see(loss)
            truth.add(train=1, backward=1)
            if number % 2 == 1:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                truth.add(optimizer=1)
        evaluate(truth, model)
        model.reshard()
        truth.see(*(parameter.to_local() for parameter in model.parameters()))


def fully_sharded(truth: Truth, folder: Path) -> None:
    """FSDP 1."""
    from torch.distributed.fsdp import FullyShardedDataParallel

    with process_group(folder):
        model = FullyShardedDataParallel(Counted(truth), device_id=torch.device("cpu"))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for x, y in counted_loader(truth, 56):
            loss = LOSS(model(x), y)
            loss.backward()
            model.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
            truth.see(loss)
            truth.add(train=1, backward=1, optimizer=1)
        evaluate(truth, model)
        truth.see(*model.parameters())


def distributed(truth: Truth, folder: Path) -> None:
    """DDP: accumulation without synchronisation, the last batches missing on one rank."""
    with process_group(folder) as rank:
        inner = Counted(truth)
        model = nn.parallel.DistributedDataParallel(inner)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with model.join():
            for number, (x, y) in enumerate(counted_loader(truth, 56 - 16 * rank)):
                with model.no_sync() if number % 2 == 0 else contextlib.nullcontext():
                    loss = LOSS(model(x), y)
                    loss.backward()
                truth.see(loss)
                truth.add(train=1, backward=1)
                if number % 2:
                    optimizer.step()
                    optimizer.zero_grad()
                    truth.add(optimizer=1)
        evaluate(truth, inner)
        truth.see_all(inner)


def evaluate(truth: Truth, model: nn.Module) -> None:
    model.eval()
    with torch.no_grad():
        for x, y in counted_loader(truth, 24):
            truth.see(LOSS(model(x), y))
            truth.add(eval=1)


@contextlib.contextmanager
def process_group(folder: Path):
    folder.mkdir(parents=True, exist_ok=True)
    rank = int(os.environ["RANK"])
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    try:
        yield rank
        torch.distributed.barrier()  # a rank that leaves while another still talks to it can leave that one hanging
    finally:
        torch.distributed.destroy_process_group()


# compiled


def compiled_inductor(truth: Truth, folder: Path) -> None:
    _compiled(truth, "in place", backend="inductor", fullgraph=True)


def compiled_model(truth: Truth, folder: Path) -> None:
    _compiled(truth, "model")


def compiled_step(truth: Truth, folder: Path) -> None:
    """The whole step: what runs inside the compiled region is not called, and cannot be seen."""
    _compiled(truth, "step")


def _compiled(truth: Truth, what: str, *, backend: str = "aot_eager", fullgraph: bool = False) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    run = torch.compile(model, backend=backend, fullgraph=fullgraph) if what == "model" else model
    if what == "in place":
        model.compile(backend=backend, fullgraph=fullgraph)

    def step(x, y):
        loss = LOSS(run(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    if what == "step":
        step = torch.compile(step, backend=backend)
    for x, y in counted_loader(truth, 48):
        truth.see(step(x, y))
        truth.add(train=1, backward=1)
        if what != "step":
            truth.add(forward=1, optimizer=1)
    if what == "model":  # evaluated as it is
        evaluate(truth, model)
        truth.add(forward=3)
    truth.see_all(model)
