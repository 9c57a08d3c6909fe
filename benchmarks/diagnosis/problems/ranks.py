"""Starts two processes that train together (gloo)."""

import os
import socket

import torch.distributed as dist
import torch.multiprocessing as mp


def _rank(rank, port, train):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"LOCAL_RANK": str(rank)}
    dist.init_process_group("gloo")
    train(rank)
    dist.barrier()  # gloo aborts if one rank leaves while the other still sends
    dist.destroy_process_group()


def launch(train):
    """Run `train(rank)` in two processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.start_processes(_rank, (port, train), nprocs=2, start_method="spawn")
