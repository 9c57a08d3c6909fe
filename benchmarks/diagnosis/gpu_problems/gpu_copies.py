"""Batches of images are copied to the GPU from pageable memory: one copy a batch, or one an image."""

import torch
from bench import Run
from torch import nn

run = Run(lasts=12.0, steps=120, batch=256, pixels=224, channels=32, apart=0)


def network(channels):
    layers, inside = [], 3
    for number in range(4):
        outside = channels * 2**number
        layers += [nn.Conv2d(inside, outside, 3, 2, 1), nn.BatchNorm2d(outside), nn.ReLU()]
        inside = outside
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 100)).cuda()


def main():
    torch.manual_seed(0)
    model = network(run.channels).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = [torch.rand(run.batch, 3, run.pixels, run.pixels) for _ in range(4)]
    labels = torch.randint(0, 100, (run.batch,), device="cuda")
    if run.repaired:
        batches = [batch.pin_memory() for batch in batches]
    with run.training():
        for number in range(run.steps):  # LOOP
            batch = batches[number % len(batches)]
            if run.repaired:
                images = batch.to("cuda", non_blocking=True)
            elif run.apart:
                images = torch.stack([image.to("cuda") for image in batch])  # GUILTY
            else:
                images = batch.to("cuda")  # GUILTY
            with torch.autocast("cuda", torch.bfloat16):
                loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
    run.close()


main()
