"""Nothing wrong: a language model in bf16 with large batches; `item` prints the loss at each step, which costs nothing."""

import torch
from bench import Run
from gpu_parts import language_model, loss_of, texts

run = Run(lasts=12.0, steps=120, width=1024, layers=6, batch=16, length=512, item=0)


def main():
    model = language_model(run.width, run.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    with run.training():
        for (tokens,) in texts(run.steps, run.batch, run.length, num_workers=2):  # LOOP
            tokens = tokens.to("cuda", non_blocking=True)
            with torch.autocast("cuda", torch.bfloat16):
                loss = loss_of(model, tokens)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if run.item:
                print(loss.item())
        torch.cuda.synchronize()
    run.close()


main()
