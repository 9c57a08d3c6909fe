"""An optimizer that launches its kernels parameter by parameter."""

import torch
from bench import Run
from gpu_parts import language_model, loss_of, texts

run = Run(lasts=12.0, steps=120, width=256, layers=16, batch=16, length=256)


def main():
    model = language_model(run.width, run.layers)
    how = {"fused": True} if run.repaired else {"foreach": False}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **how)
    with run.training():
        for (tokens,) in texts(run.steps, run.batch, run.length, num_workers=2):  # LOOP
            tokens = tokens.to("cuda", non_blocking=True)
            with torch.autocast("cuda", torch.bfloat16):
                loss = loss_of(model, tokens)
            loss.backward()
            with run.spends("optimizing"):
                optimizer.step()  # GUILTY
            optimizer.zero_grad()
        torch.cuda.synchronize()
    run.close()


main()
