"""A DataLoader of torch without workers that is slower than the step in JAX."""

import time

import jax
import torch
from bench import Run
from jax_parts import network, rows, update
from torch.utils.data import DataLoader, Dataset

run = Run(lasts=12.0, steps=800, width=512, batch=64, share=0.5)
data, labels = rows(run.batch * 8, 64)
pause = run.pause() / run.batch


class Rows(Dataset):
    def __len__(self):
        return run.steps * run.batch

    def __getitem__(self, index):
        if pause:
            with run.spends("loading"):
                time.sleep(pause)  # GUILTY
        return torch.from_numpy(data[index % len(data)]), int(labels[index % len(data)])


train_step = jax.jit(update)
params, state = network(64, run.width)
train_step(params, state, data[: run.batch], labels[: run.batch])  # compiled before the loop
with run.training():
    for x, y in DataLoader(Rows(), batch_size=run.batch):  # LOOP
        params, state, loss = train_step(params, state, x.numpy(), y.numpy())
        loss.block_until_ready()
        run.stepped()
run.close()
