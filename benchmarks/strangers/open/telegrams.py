"""Shorten telegrams, as the post charges by the word: pointer-free seq2seq with a self-critical reward (REINFORCE against the
greedy answer), after a few steps of teacher forcing.
"""

import os
import random
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

PAD, BOS, EOS = 0, 1, 2
FILLERS = ["please", "the", "a", "very", "dear", "kindly", "that", "of", "to", "be"]
KEPT = ["arrive", "monday", "send", "money", "mother", "ill", "train", "late", "sell", "wheat", "buy", "horses", "come",
        "home", "boy", "born", "letter", "follows", "cancel", "hotel", "ship", "lost", "all", "well"]  # fmt: skip
WORDS = ["<pad>", "<s>", "</s>", *FILLERS, *KEPT]
ID = {word: i for i, word in enumerate(WORDS)}
LONG, SHORT = 24, 14


def message(rnd):
    words = [rnd.choice(KEPT if rnd.random() < 0.5 else FILLERS) for _ in range(rnd.randint(10, LONG))]
    return words, [word for word in words if word in KEPT][: SHORT - 1]


def batch_of(rnd, size):
    source, target = torch.zeros(size, LONG, dtype=torch.long), torch.zeros(size, SHORT, dtype=torch.long)
    for row in range(size):
        words, short = message(rnd)
        source[row, : len(words)] = torch.tensor([ID[word] for word in words])
        target[row, : len(short) + 1] = torch.tensor([ID[word] for word in short] + [EOS])
    return source, target


class Shortener(nn.Module):
    def __init__(self, width=96, heads=4, depth=2):
        super().__init__()
        self.embed, self.place = nn.Embedding(len(WORDS), width), nn.Embedding(32, width)
        self.transformer = nn.Transformer(width, heads, depth, depth, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.out = nn.Linear(width, len(WORDS))

    def embedded(self, ids):
        return self.embed(ids) + self.place(torch.arange(ids.shape[1]))

    def encode(self, source):
        return self.transformer.encoder(self.embedded(source), src_key_padding_mask=source == PAD)

    def decode(self, memory, source, so_far):
        mask = nn.Transformer.generate_square_subsequent_mask(so_far.shape[1])
        h = self.transformer.decoder(self.embedded(so_far), memory, tgt_mask=mask, tgt_is_causal=True,
                                     memory_key_padding_mask=source == PAD)
        return self.out(h)

    def forward(self, source, target):
        shifted = torch.cat([torch.full_like(target[:, :1], BOS), target[:, :-1]], 1)
        return self.decode(self.encode(source), source, shifted)

    @torch.no_grad()
    def answer(self, source, greedy):
        so_far = torch.full((len(source), 1), BOS)
        done = torch.zeros(len(source), dtype=torch.bool)
        if os.environ.get("REPAIRED") == "1":
            memory = self.encode(source)
        for _ in range(SHORT):
            if os.environ.get("REPAIRED") != "1":
                memory = self.encode(source)
            logits = self.decode(memory, source, so_far)[:, -1]
            word = logits.argmax(-1) if greedy else torch.multinomial(logits.softmax(-1), 1).squeeze(1)
            word = word.masked_fill(done, PAD)
            so_far = torch.cat([so_far, word[:, None]], 1)
            done |= word == EOS
        return so_far[:, 1:]


def reward(answer, target):
    """Share of words that stand in the right place."""
    return ((answer == target) & (target != PAD)).sum(1) / (target != PAD).sum(1)


def main():
    torch.manual_seed(64)
    rnd = random.Random(64)
    model = Shortener()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    begin = time.time()
    for step in range(1, 53):
        source, target = batch_of(rnd, 32)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(source, target).flatten(0, 1), target.flatten(), ignore_index=PAD)
        if step > 10:
            tried, best = model.answer(source, greedy=False), model.answer(source, greedy=True)
            advantage = reward(tried, target) - reward(best, target)
            log_p = -F.cross_entropy(model(source, tried).transpose(1, 2), tried, ignore_index=PAD, reduction="none").sum(1)
            loss = 0.3 * loss - 0.1 * (advantage * log_p).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
    print(f"training took {time.time() - begin:.2f} s")


if __name__ == "__main__":
    main()
