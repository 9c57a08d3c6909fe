"""Ranks that `torch.multiprocessing.spawn` or the forkserver starts; the main process trains nothing."""

import os
import sys

import loop
import torch
from torch import distributed

WORLD = 2


def rank_main(rank: int, port: str) -> None:
    distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORLD)
    loop.train(rank, WORLD)
    distributed.destroy_process_group()


def main() -> None:
    method, port = sys.argv[1:]
    torch.multiprocessing.start_processes(rank_main, (port,), WORLD, start_method=method)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
