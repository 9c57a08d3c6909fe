"""cuDNN's attention makes a plan for each new length, while the GPU waits; padding to a few lengths avoids it."""

import random

import torch
from bench import Run
from gpu_parts import TOKENS, language_model, loss_of

run = Run(lasts=12.0, steps=120, width=768, layers=6, batch=16)


def main():
    chance = random.Random(1)
    model = language_model(run.width, run.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    with run.training():
        for _ in range(run.steps):  # LOOP
            length = 128 * chance.randint(1, 5) if run.repaired else chance.randint(64, 640)
            tokens = torch.randint(0, TOKENS, (run.batch, length), device="cuda")
            with torch.autocast("cuda", torch.bfloat16):
                loss = loss_of(model, tokens)  # GUILTY
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
    run.close()


main()
