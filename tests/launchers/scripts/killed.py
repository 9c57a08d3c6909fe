"""A rank in a process of its own that is killed after eight steps."""

import os
import signal
import time

import loop
import torch


def rank_main(_rank: int) -> None:
    loop.train(0, 1, steps=8)
    time.sleep(3)  # what the hook flushes once a second is on the disk then
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    torch.multiprocessing.start_processes(rank_main, (), 1, start_method="spawn")
