"""Score essays in five respects at once: a convolutional encoder and ordinal heads, trained with accelerate."""

import random
import time

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import get_linear_schedule_with_warmup

RESPECTS = ("content", "structure", "style", "spelling", "length")
GRADES, WORDS, LONGEST = 6, 3000, 192


class Essays(Dataset):
    """Numbers of words; a good essay has rarer words in a respect's own part of the vocabulary."""

    def __init__(self, n, seed):
        rng = random.Random(seed)
        self.items = []
        for _ in range(n):
            grades = [rng.randrange(GRADES) for _ in RESPECTS]
            length = rng.randint(120, LONGEST)
            words = [rng.randrange(1, WORDS) for _ in range(length)]
            for i in range(0, length, 2):
                respect = rng.randrange(len(RESPECTS))
                words[i] = 1 + respect * 500 + grades[respect] * 80 + rng.randrange(80)
            self.items.append((words, grades))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def collate(batch):
    words = torch.zeros(len(batch), max(len(w) for w, _ in batch), dtype=torch.long)
    for row, (w, _) in zip(words, batch):
        row[: len(w)] = torch.tensor(w)
    return {"words": words, "grades": torch.tensor([g for _, g in batch])}


class Marker(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.embed = nn.Embedding(WORDS, width, padding_idx=0)
        self.convs = nn.ModuleList(nn.Conv1d(width, width, k, padding=k // 2) for k in (3, 5, 7))
        self.query = nn.Parameter(torch.randn(len(RESPECTS), 3 * width) / width**0.5)
        self.level = nn.Linear(3 * width, 1)
        self.steps = nn.Parameter(torch.linspace(-2, 2, GRADES - 1).repeat(len(RESPECTS), 1))

    def forward(self, words):
        x = self.embed(words).transpose(1, 2)
        h = torch.cat([conv(x).relu() for conv in self.convs], 1).transpose(1, 2)
        weight = (h @ self.query.T).masked_fill((words == 0)[..., None], -1e4).softmax(1)
        return self.level(weight.transpose(1, 2) @ h) - self.steps  # is the grade higher than 0, 1, ...?


def kappa(guess, grades):
    """Quadratic weighted kappa, of all respects together."""
    apart = (guess - grades).square().float().mean()
    by_chance = (guess.flatten()[:, None] - grades.flatten()[None]).square().float().mean()
    return (1 - apart / by_chance).item()


def main():
    set_seed(23)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    train = DataLoader(Essays(960, 0), batch_size=16, shuffle=True, collate_fn=collate)
    test = DataLoader(Essays(64, 1), batch_size=32, collate_fn=collate)
    model = Marker()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    epochs = 4
    schedule = get_linear_schedule_with_warmup(optimizer, 15, epochs * len(train) // 2)
    model, optimizer, train, test, schedule = accelerator.prepare(model, optimizer, train, test, schedule)
    start = time.time()
    for epoch in range(epochs):
        model.train()
        for step, batch in enumerate(train):
            with accelerator.accumulate(model):
                higher = (batch["grades"][..., None] > torch.arange(GRADES - 1)).float()
                loss = nn.functional.binary_cross_entropy_with_logits(model(batch["words"]), higher)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            if step % 15 == 0:
                accelerator.print(f"{epoch}.{step:03d} loss {loss.item():.4f} lr {schedule.get_last_lr()[0]:.1e}", flush=True)
        model.eval()
        guesses, grades = [], []
        for batch in test:
            with torch.inference_mode():
                guess = (model(batch["words"]) > 0).sum(-1)
            guess, grade = accelerator.gather_for_metrics((guess, batch["grades"]))
            guesses.append(guess)
            grades.append(grade)
        accelerator.print(f"epoch {epoch}: kappa {kappa(torch.cat(guesses), torch.cat(grades)):.3f}")
        accelerator.save_state("state")
    accelerator.print(f"training took {time.time() - start:.2f} s")


if __name__ == "__main__":
    main()
