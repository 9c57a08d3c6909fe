"""Two ranks, of which the second fails after some steps."""

import os

import loop

if __name__ == "__main__":
    rank = int(os.environ["RANK"])
    loop.train(rank, 2, steps=5 if rank else 12)
    if rank:
        raise ValueError("of the script")
