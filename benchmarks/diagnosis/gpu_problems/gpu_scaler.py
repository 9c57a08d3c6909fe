"""Nothing wrong: fp16 with a GradScaler, clipped gradients, and several batches for each step of the optimizer."""

import torch
from bench import Run
from gpu_parts import language_model, loss_of, texts

run = Run(lasts=12.0, steps=40, width=1024, layers=6, batch=12, length=512, accumulate=4)


def main():
    model = language_model(run.width, run.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    scaler = torch.amp.GradScaler("cuda")
    with run.training():
        for number, (tokens,) in enumerate(
            texts(run.steps * run.accumulate, run.batch, run.length, num_workers=2)
        ):  # LOOP
            tokens = tokens.to("cuda", non_blocking=True)
            with torch.autocast("cuda", torch.float16):
                loss = loss_of(model, tokens) / run.accumulate
            scaler.scale(loss).backward()
            if number % run.accumulate == run.accumulate - 1:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        torch.cuda.synchronize()
    run.close()


main()
