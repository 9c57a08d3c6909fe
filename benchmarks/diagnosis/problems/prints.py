"""The logging module at debug level, with a slow handler, for every sample of the batch."""

import logging
import sys
import time

import torch
from bench import Run
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

run = Run(steps=150, share=0.45, width=400, batch=48)
logger = logging.getLogger("trainer")


class Remote(logging.Handler):
    """Sends every record to a collector."""

    def __init__(self, delay):
        super().__init__()
        self.delay = delay

    def emit(self, record):
        message = self.format(record)
        if self.delay:
            time.sleep(self.delay)  # GUILTY: the round trip
        sys.stderr.write(message[:80] + "\n")


def main():
    logger.setLevel(logging.INFO if run.repaired else logging.DEBUG)
    logger.propagate = False
    logger.addHandler(Remote(run.pause() / 8))
    x, y = torch.randn(run.steps * run.batch, run.width), torch.randn(run.steps * run.batch, 1)
    model = nn.Sequential(nn.Linear(run.width, 1000), nn.SiLU(), nn.Linear(1000, 500), nn.SiLU(), nn.Linear(500, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with run.training():
        for inputs, wanted in DataLoader(TensorDataset(x, y), run.batch, shuffle=True):  # LOOP
            optimizer.zero_grad()
            guess = model(inputs)
            loss = nn.functional.mse_loss(guess, wanted)
            loss.backward()
            optimizer.step()
            with run.spends("logging"):
                for index in range(8):
                    logger.debug("sample %d: %.4f for %.4f", index, guess[index].item(), wanted[index].item())  # GUILTY
    run.close()


if __name__ == "__main__":
    main()
