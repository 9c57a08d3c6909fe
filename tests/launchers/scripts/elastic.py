"""One rank under torchrun; in the first attempt, the last rank is killed in the middle."""

import os
import signal
import sys
import time
from pathlib import Path

import loop
import torch
from torch import distributed, nn

STEPS, KILLED_AT = 12, 6


def main() -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    notes = Path(sys.argv[1])
    # a store for each attempt: in torchrun's own one, gloo sometimes finds addresses of the attempt before
    store = f"file://{notes}-store-{attempt}"
    distributed.init_process_group("gloo", store, rank=rank, world_size=world)
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = nn.parallel.DistributedDataParallel(loop.Small())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step, batch in enumerate(torch.utils.data.DataLoader(loop.Numbers(STEPS * loop.BATCH), loop.BATCH)):
        if attempt == 0 and step == KILLED_AT and rank == world - 1:
            time.sleep(3)  # what the hook flushes once a second is on the disk then
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(batch), batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        with (notes / f"{attempt}-{rank}-{os.getpid()}").open("a") as file:
            file.write(f"{step}\n")
    loop.report(rank, STEPS, losses, model, attempt=attempt)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
