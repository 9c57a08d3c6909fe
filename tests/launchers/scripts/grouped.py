"""One rank of a process group that the launcher's variables describe."""

import os

import loop
from torch import distributed


def main() -> None:
    names = (("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"))
    rank, world = next((int(os.environ[a]), int(os.environ[b])) for a, b in names if a in os.environ)
    distributed.init_process_group("gloo", rank=rank, world_size=world)
    loop.train(rank, world)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
