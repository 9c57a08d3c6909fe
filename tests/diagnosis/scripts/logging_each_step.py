"""Metrics and a log line at every step, outside every phase."""

import json
import sys
import tempfile

import torch
from torch.utils.data import DataLoader
from workload import Diary, Vectors, fetched, learn, network

rounds, steps = int(sys.argv[1]), int(sys.argv[2])
diary, model = Diary(), network(384)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with tempfile.TemporaryFile("w") as log:
    for inputs, targets in fetched(DataLoader(Vectors(64 * steps, 384), 64), diary):
        loss = learn(model, optimizer, inputs, targets)
        with diary.spends("logging"):
            for _ in range(rounds):
                norms = {name: parameter.detach().norm().item() for name, parameter in model.named_parameters()}
                log.write(json.dumps({"loss": loss.item(), **norms}) + "\n")
                log.flush()
diary.close()
