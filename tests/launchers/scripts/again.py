"""A script that sets variables and starts itself again, as some do for LD_PRELOAD or a number of threads."""

import os
import sys

import torch

if os.environ.get("STARTED_AGAIN") != "1":
    torch.ones(2).sum()
    os.environ["STARTED_AGAIN"] = "1"
    os.execv(sys.executable, [sys.executable, *sys.argv])

import loop

loop.train(0, 1)
