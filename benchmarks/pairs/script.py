"""The loops that `benchmarks/pairs.py` runs in pairs.

`Turns` waits until both scripts of a pair are ready, and reports what each block took.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

KINDS: dict[str, Callable[[], None]] = {}
BLOCKS, STEPS = map(int, sys.argv[2:4])  # blocks in all, and steps of each


def kind(function: Callable[[], None]) -> Callable[[], None]:
    KINDS[function.__name__] = function
    return function


class Turns:
    """Counts steps, and reports the CPU time after each block."""

    def __init__(self) -> None:
        folder = Path(os.environ["PAIR"])
        self._done = (folder / "done").open("w", buffering=1)
        self._left = STEPS
        self.blocks = BLOCKS
        self._report()
        with (folder / "go").open() as go:  # the other script is ready, too
            go.readline()

    def _report(self) -> None:
        self._done.write(f"{time.process_time()}\n")

    def step(self) -> bool:
        """Note the end of a step; return whether another one follows."""
        self._left -= 1
        if not self._left:
            self._left = STEPS
            self.blocks -= 1
            self._report()
        return self.blocks > 0


def batches(turns: Turns, *shapes: tuple[int, ...]) -> Iterator[list]:
    """Return random batches until all blocks are done."""
    import torch

    known = [[torch.randn(*shape) for shape in shapes] for _ in range(20)]
    number = 0
    while turns.blocks > 0:
        yield known[number % len(known)]
        number += 1


def train(model, data: Iterator[list], forward: Callable | None = None, *, turns: Turns) -> None:
    import torch

    optimizer = torch.optim.Adam(model.parameters())
    for x, y in data:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss((forward or model)(x), y).backward()
        optimizer.step()
        if not turns.step():
            break


def layers(torch, width: int, count: int, last: int):
    inner = [layer for _ in range(count) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    return torch.nn.Sequential(*inner, torch.nn.Linear(width, last))


@kind
def cells() -> None:
    """A loop over an LSTMCell: many module calls a step."""
    import torch

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.out = torch.nn.LSTMCell(32, 64), torch.nn.Linear(64, 1)

        def forward(self, x):
            h = c = torch.zeros(x.shape[0], 64)
            for t in range(x.shape[1]):
                h, c = self.cell(x[:, t], (h, c))
            return self.out(h)

    turns = Turns()
    train(Model(), batches(turns, (16, 60, 32), (16, 1)), turns=turns)


@kind
def samples() -> None:
    """A forward for each sample."""
    import torch

    model, turns = layers(torch, 32, 4, 1), Turns()
    train(model, batches(turns, (64, 32), (64, 1)), lambda x: torch.stack([model(row) for row in x]), turns=turns)


@kind
def tiny() -> None:
    """Steps of less than a millisecond."""
    import torch

    turns = Turns()
    train(layers(torch, 32, 2, 1), batches(turns, (8, 32), (8, 1)), turns=turns)


@kind
def evaluations() -> None:
    """Steps of less than a millisecond; after every fifth, the model is evaluated on 32 batches."""
    import torch

    turns, model = Turns(), layers(torch, 32, 2, 1)
    optimizer, known = (
        torch.optim.Adam(model.parameters()),
        [(torch.randn(8, 32), torch.randn(8, 1)) for _ in range(32)],
    )
    while True:
        for number, (x, y) in enumerate(known):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            if not turns.step():
                return
            if number % 5 == 4:
                model.eval()
                with torch.no_grad():
                    sum(torch.nn.functional.mse_loss(model(x), y).item() for x, y in known)
                model.train()


@kind
def workers() -> None:
    """A loader with two workers, which start again in each epoch."""
    import torch

    data = torch.utils.data.TensorDataset(torch.randn(6400, 64), torch.randn(6400, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=32, num_workers=2)
    model, turns = layers(torch, 64, 6, 1), Turns()
    optimizer = torch.optim.Adam(model.parameters())
    while turns.blocks > 0:
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            if not turns.step():
                return


@kind
def trainer() -> None:
    """The Trainer of transformers, and a small GPT-2."""
    import torch
    import transformers

    config = transformers.GPT2Config(n_layer=4, n_head=4, n_embd=64, vocab_size=500, n_positions=64)
    turns = Turns()

    class Turn(transformers.TrainerCallback):
        def on_step_end(self, _args, _state, control, **_):
            control.should_training_stop = not turns.step()

    tokens = [{"input_ids": row, "labels": row} for row in torch.randint(0, 500, (20_000, 64))]
    arguments = transformers.TrainingArguments(
        str(Path(os.environ["PAIR"]) / "out"), max_steps=10**6, per_device_train_batch_size=8, report_to=[],
        save_strategy="no", use_cpu=True, disable_tqdm=True, logging_steps=50,
    )  # fmt: skip
    transformers.Trainer(
        transformers.GPT2LMHeadModel(config), arguments, train_dataset=tokens, callbacks=[Turn()]
    ).train()


@kind
def lightning() -> None:
    """Lightning."""
    import lightning as pl
    import torch

    turns = Turns()

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = layers(torch, 64, 6, 1)

        def training_step(self, batch, _):
            x, y = batch
            return torch.nn.functional.mse_loss(self.model(x), y)

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    class Turn(pl.Callback):
        def on_train_batch_end(self, trainer, *_):
            trainer.should_stop = not turns.step()

    data = torch.utils.data.TensorDataset(torch.randn(64_000, 64), torch.randn(64_000, 1))
    fit = pl.Trainer(
        max_epochs=-1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, callbacks=[Turn()], default_root_dir=os.environ["PAIR"],
    )  # fmt: skip
    fit.fit(Module(), torch.utils.data.DataLoader(data, batch_size=32))


@kind
def keras() -> None:
    """`fit` of Keras with TensorFlow."""
    import keras
    import numpy as np

    turns = Turns()

    class Turn(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None) -> None:  # names that Keras passes
            self.model.stop_training = not turns.step()

    model = keras.Sequential([*(keras.layers.Dense(64, "relu") for _ in range(4)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    x, y = np.random.rand(64_000, 64), np.random.rand(64_000, 1)  # noqa: NPY002 - any numbers
    model.fit(x, y, batch_size=32, epochs=1000, verbose=0, callbacks=[Turn()])


@kind
def jax() -> None:
    """A compiled step of JAX, whose result is awaited."""
    import jax
    import jax.numpy as jnp

    turns = Turns()
    weights = [jax.random.normal(jax.random.key(seed), (128, 128)) * 0.05 for seed in range(6)]
    x = jax.random.normal(jax.random.key(9), (64, 128))

    def loss(weights, x):
        for layer in weights:
            x = jnp.tanh(x @ layer)
        return (x**2).mean()

    @jax.jit
    def step(weights, x):
        value, gradients = jax.value_and_grad(loss)(weights, x)
        return value, [layer - 0.1 * gradient for layer, gradient in zip(weights, gradients, strict=True)]

    while True:
        value, weights = step(weights, x)
        value.block_until_ready()
        if not turns.step():
            return


@kind
def ranks() -> None:
    """Two ranks of DistributedDataParallel; the first one takes the turns."""
    import torch

    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(layers(torch, 128, 6, 1))
    if torch.distributed.get_rank() == 0:
        turns = Turns()
        data = batches(turns, (64, 128), (64, 1))
        train(model, data, turns=turns)
    else:
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(BLOCKS * STEPS):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(torch.randn(64, 128)), torch.randn(64, 1)).backward()
            optimizer.step()
    torch.distributed.destroy_process_group()


@kind
def long() -> None:
    """Steps of a convolutional network, over a longer time."""
    import torch

    conv = [layer for _ in range(4) for layer in (torch.nn.Conv2d(16, 16, 3, padding=1), torch.nn.ReLU())]
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), *conv, torch.nn.Flatten(), torch.nn.LazyLinear(1))
    turns = Turns()
    data = batches(turns, (8, 3, 32, 32), (8, 1))
    model(next(data)[0])
    train(model, data, turns=turns)


if __name__ == "__main__":
    if os.environ.get("PAIR_THREAD"):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    if "torch" in sys.modules or sys.argv[1] not in ("keras", "jax"):
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(0)
    KINDS[sys.argv[1]]()
