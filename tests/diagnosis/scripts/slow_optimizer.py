"""An optimizer that works element by element in Python."""

import sys

import torch
from torch.utils.data import DataLoader
from workload import Diary, Vectors, fetched, learn, network

rounds, steps = int(sys.argv[1]), int(sys.argv[2])


class Fussy(torch.optim.Optimizer):
    """SGD with a Newton-Schulz-like loop over every matrix."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure=None):  # noqa: ARG002 - torch's signature
        with diary.spends("optimizing"):
            for group in self.param_groups:
                for parameter in group["params"]:
                    update = parameter.grad
                    for _ in range(rounds if update.ndim == 2 else 0):
                        update = update @ (update.T @ update) * 1e-6 + update
                    parameter.add_(update, alpha=-group["lr"])


diary, model = Diary(), network(256)
optimizer = Fussy(model.parameters())
for inputs, targets in fetched(DataLoader(Vectors(64 * steps), 64), diary):
    learn(model, optimizer, inputs, targets)
diary.close()
