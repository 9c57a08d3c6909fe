"""The GPU waits for a dataset that prepares each sample slowly, in the training process."""

import time

import torch
from bench import Run
from gpu_parts import TOKENS, language_model, loss_of
from torch.utils.data import DataLoader, Dataset

run = Run(lasts=12.0, steps=120, width=1024, layers=4, batch=16, length=256, share=0.45)


class Texts(Dataset):
    def __init__(self, count, seconds):
        self.count, self.seconds = count, seconds

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        with run.spends("loading"):
            until = time.perf_counter() + self.seconds
            tokens = torch.randint(0, TOKENS, (run.length,))
            while time.perf_counter() < until:
                tokens = tokens.flip(0)  # GUILTY
        return tokens


def main():
    model = language_model(run.width, run.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    data = Texts(run.steps * run.batch, run.pause() / run.batch)
    with run.training():
        for tokens in DataLoader(data, run.batch, pin_memory=True):  # LOOP
            tokens = tokens.to("cuda", non_blocking=True)
            with torch.autocast("cuda", torch.bfloat16):
                loss = loss_of(model, tokens)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
    run.close()


main()
