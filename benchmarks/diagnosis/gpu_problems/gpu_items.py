"""The norm of each parameter's gradient is read after each backward pass, one by one."""

import torch
from bench import Run
from gpu_parts import language_model, loss_of, texts

run = Run(lasts=12.0, steps=120, width=1024, layers=6, batch=16, length=512)


def main():
    model = language_model(run.width, run.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    with run.training():
        for number, (tokens,) in enumerate(texts(run.steps, run.batch, run.length, num_workers=2)):  # LOOP
            tokens = tokens.to("cuda", non_blocking=True)
            with torch.autocast("cuda", torch.bfloat16):
                loss = loss_of(model, tokens)
            loss.backward()
            if not run.repaired or number % 50 == 0:
                with run.spends("norms"):
                    norms = {name: p.grad.norm().item() for name, p in model.named_parameters()}  # GUILTY
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
    run.close(largest=max(norms, key=norms.get))


main()
