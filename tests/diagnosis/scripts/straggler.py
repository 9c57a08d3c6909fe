"""Two ranks; one of them is late at every step.  Starts its own ranks."""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader
from workload import Diary, Vectors, fetched, network

slow_rank, late_ms, where, steps = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3], int(sys.argv[4])


class Late(nn.Module):
    def __init__(self, seconds):
        super().__init__()
        self.scale, self.seconds = nn.Parameter(torch.ones(1)), seconds

    def forward(self, inputs):
        time.sleep(self.seconds)
        return inputs * self.scale


def train(rank, port):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"LOCAL_RANK": str(rank)}
    dist.init_process_group("gloo")
    late = late_ms / 1e3 if rank == slow_rank else 0.0
    diary = Diary()
    model = nn.parallel.DistributedDataParallel(nn.Sequential(Late(late * (where == "forward")), network(192)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = Vectors(32 * steps, 192, work_s=late / 32 * (where == "wait"))
    for inputs, targets in fetched(DataLoader(data, 32), diary):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    if rank == slow_rank:
        diary.close(rank=rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    mp.start_processes(train, (number,), nprocs=2, start_method="spawn")
