"""torch.compile compiles the model for the GPU again for new lengths."""

import torch
from bench import Run
from gpu_parts import TOKENS, language_model, loss_of

run = Run(lasts=6.0, steps=120, width=256, layers=2, batch=16, shapes=7)


def main():
    torch._dynamo.config.cache_size_limit = 64
    model = language_model(run.width, run.layers)
    call = torch.compile(model, dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    shapes = 1 if run.repaired else run.shapes
    with run.training():
        for number in range(run.steps):  # LOOP
            tokens = torch.randint(0, TOKENS, (run.batch, 128 + 16 * (number // 9 % shapes)), device="cuda")
            with torch.autocast("cuda", torch.bfloat16):
                loss = loss_of(call, tokens)  # GUILTY
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
    run.close()


main()
