"""Batches of varying shapes fill the GPU's memory with pieces, so that torch frees its cache again and again."""

import random

import torch
from bench import Run
from gpu_parts import TOKENS, language_model, loss_of

run = Run(lasts=12.0, steps=120, width=768, layers=6, batch=16, memory=0.042)


def main():
    torch.cuda.set_per_process_memory_fraction(1.0 if run.repaired else run.memory)  # a smaller GPU
    torch.backends.cuda.enable_cudnn_sdp(False)  # makes a plan for each new length
    chance = random.Random(1)
    model = language_model(run.width, run.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    with run.training():
        for _ in range(run.steps):  # LOOP
            length = chance.randint(64, 640)
            tokens = torch.randint(0, TOKENS, (run.batch, length), device="cuda")
            with torch.autocast("cuda", torch.bfloat16):
                loss = loss_of(model, tokens)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
    run.close(retries=torch.cuda.memory_stats()["num_alloc_retries"])


main()
