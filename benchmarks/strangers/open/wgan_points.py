"""A Wasserstein GAN of points in the plane, whose critic takes five steps for each of the generator's."""

import math
import time

import torch
from torch import nn

CRITIC_STEPS, ROUNDS, BATCH, CLIP = 5, 60, 384, 0.02


def mlp(inputs, outputs, width=384):
    return nn.Sequential(
        nn.Linear(inputs, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2),
        nn.Linear(width, width), nn.LeakyReLU(0.2), nn.Linear(width, outputs),
    )


def spiral():
    angle = 4 * math.pi * torch.rand(BATCH, 1).sqrt()
    return torch.cat([angle.cos() * angle, angle.sin() * angle], 1) / 12 + 0.01 * torch.randn(BATCH, 2)


generator, critic = mlp(8, 2), mlp(2, 1)
opt_g = torch.optim.RMSprop(generator.parameters(), lr=5e-5)
opt_c = torch.optim.RMSprop(critic.parameters(), lr=5e-5)
start = time.time()
for number in range(ROUNDS):
    for _ in range(CRITIC_STEPS):
        with torch.no_grad():
            fake = generator(torch.randn(BATCH, 8))
        distance = critic(spiral()).mean() - critic(fake).mean()
        opt_c.zero_grad()
        (-distance).backward()
        opt_c.step()
        with torch.no_grad():
            for weight in critic.parameters():
                weight.clamp_(-CLIP, CLIP)
    loss = -critic(generator(torch.randn(BATCH, 8))).mean()
    opt_g.zero_grad()
    loss.backward()
    opt_g.step()
    if number % 30 == 0:
        print(f"round {number}: distance {distance.item():.5f}")
print(f"training took {time.time() - start:.2f} s")
