"""Worker processes that compute more for a batch than the loop does."""

import sys

import torch
from torch.utils.data import DataLoader
from workload import Diary, Vectors, fetched, learn, network

sample_ms, workers, steps = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
if __name__ == "__main__":
    diary, model = Diary(), network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Vectors(16 * steps, work_s=sample_ms / 1e3, computing=True), 16, num_workers=workers)
    for inputs, targets in fetched(loader, diary):
        learn(model, optimizer, inputs, targets)
    diary.close()
