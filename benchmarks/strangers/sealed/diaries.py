"""How was the day? Moods from private diaries, so that nobody's words can be read from the weights: DP-SGD, in which the
gradient of every diary is clipped before they are summed up with noise.
"""

import argparse
import os
import time

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

MOODS, WORDS, LENGTH = 6, 2000, 40


def diaries(count: int, seed: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    mood = torch.randint(MOODS, (count,), generator=g)
    words = (WORDS * torch.rand(count, LENGTH, generator=g) ** 2).long()
    telling = torch.rand(count, LENGTH, generator=g) < 0.15
    return torch.where(telling, words // MOODS * MOODS + mood[:, None], words).clamp(max=WORDS - 1), mood


class Reader(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.near = nn.Conv1d(width, 2 * width, 5, padding=2)
        self.body = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, MOODS))

    def forward(self, words: Tensor) -> Tensor:
        h = nn.functional.glu(self.near(self.words(words).transpose(1, 2)), 1)
        return self.body(h.mean(2))


class Private:
    """Clips what each diary says, then adds noise; `one_by_one` or all at once."""

    def __init__(self, model: nn.Module, clip: float, noise: float):
        self.model, self.clip, self.noise = model, clip, noise
        self.names = [name for name, _ in model.named_parameters()]

    def finish(self, sums: list[Tensor], count: int) -> None:
        for p, total in zip(self.model.parameters(), sums):
            p.grad = (total + self.noise * self.clip * torch.randn_like(total)) / count

    def one_by_one(self, words: Tensor, mood: Tensor) -> Tensor:
        sums = [torch.zeros_like(p) for p in self.model.parameters()]
        losses = []
        for text, label in zip(words, mood):
            self.model.zero_grad()
            loss = nn.functional.cross_entropy(self.model(text[None]), label[None])
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            for total, p in zip(sums, self.model.parameters()):
                total += p.grad
            losses.append(loss.detach())
        self.finish(sums, len(words))
        return torch.stack(losses).mean()

    def together(self, words: Tensor, mood: Tensor) -> Tensor:
        def loss(params, text, label):
            logits = functional_call(self.model, params, (text[None],))
            return nn.functional.cross_entropy(logits, label[None])

        params = {name: p.detach() for name, p in self.model.named_parameters()}
        grads, losses = vmap(grad_and_value(loss), (None, 0, 0))(params, words, mood)
        grads = [grads[name] for name in self.names]
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads]).norm(dim=0)
        scale = (self.clip / (norms + 1e-6)).clamp(max=1)
        self.finish([torch.tensordot(scale, g, 1) for g in grads], len(words))
        return losses.mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--noise", type=float, default=0.6)
    args = parser.parse_args()
    torch.manual_seed(9)
    words, mood = diaries(6000, 2)
    model = Reader(args.width)
    private = Private(model, args.clip, args.noise)
    gradients = private.together if os.environ.get("REPAIRED") == "1" else private.one_by_one
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    begin = time.time()
    for step in range(args.steps):
        rows = torch.randint(len(words), (args.batch,))
        loss = gradients(words[rows], mood[rows])
        optimizer.step()
        if step % 50 == 0:
            print(f"{step:4d} {loss.item():.3f}", flush=True)
    print(f"training took {time.time() - begin:.2f} s")


if __name__ == "__main__":
    main()
