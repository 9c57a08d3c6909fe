"""An optimizer that orthogonalizes every gradient."""

import torch
from bench import Run
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

run = Run(steps=120, share=0.6, width=256, batch=128)


class Orthogonal(torch.optim.Optimizer):
    def __init__(self, params, lr, iterations):
        super().__init__(params, {"lr": lr})
        self.iterations = iterations

    @torch.no_grad()
    def step(self, closure=None):
        with run.spends("optimizing"):
            for group in self.param_groups:
                for weight in group["params"]:
                    update = weight.grad
                    if update.ndim == 2:
                        update = self.orthogonalize(update)
                    weight.sub_(update, alpha=group["lr"])

    def orthogonalize(self, matrix):
        matrix = matrix / (matrix.norm() + 1e-7)
        for _ in range(self.iterations):
            matrix = 1.5 * matrix - 0.5 * matrix @ (matrix.T @ matrix)  # GUILTY
        return matrix


layers = [part for _ in range(4) for part in (nn.Linear(run.width, run.width), nn.ReLU())]
model = nn.Sequential(*layers, nn.Linear(run.width, 10))
probe = torch.randn(run.width, run.width)
iterations = run.rounds(lambda: 1.5 * probe - 0.5 * probe @ (probe.T @ probe)) // 4
optimizer = Orthogonal(model.parameters(), 0.01, iterations)
count = run.steps * run.batch
loader = DataLoader(TensorDataset(torch.randn(count, run.width), torch.randint(0, 10, (count,))), run.batch)
with run.training():
    for x, y in loader:  # LOOP
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
run.close()
