"""A training written for accelerate."""

import loop
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

STEPS = 12


def main() -> None:
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = loop.Small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = loop.Numbers(STEPS * loop.BATCH * accelerator.num_processes)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, loop.BATCH, num_workers=1))
    losses, count = [], 0
    for batch in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(batch), batch)
        accelerator.backward(loss)
        optimizer.step()
        losses.append(loss.item())
        count += 1
    loop.report(accelerator.process_index, count, losses, model)


if __name__ == "__main__":
    main()
