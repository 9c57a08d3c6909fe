"""Dictation: sound features to letters with an encoder, attention and a decoder, in Lightning."""

import os
import time

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

LETTERS, FRAMES, LONGEST = 30, 100, 100
RATE_EVERY = 40 if os.environ.get("REPAIRED") == "1" else 1


def edits(said, heard):
    """Levenshtein distance of two lists of letters."""
    above = list(range(len(heard) + 1))
    for i, a in enumerate(said, 1):
        row = [i]
        for j, b in enumerate(heard, 1):
            row.append(min(row[j - 1] + 1, above[j] + 1, above[j - 1] + (a != b)))
        above = row
    return above[-1]


def error_rate(logits, letters):
    best = logits.argmax(-1)
    wrong = total = 0
    for guess, wanted in zip(best, letters):
        guess, wanted = guess.tolist(), [letter for letter in wanted.tolist() if letter]
        wrong += edits(wanted, guess[: len(wanted)])
        total += len(wanted)
    return wrong / total


class Dictation(pl.LightningModule):
    def __init__(self, hidden=64, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.GRU(40, hidden // 2, batch_first=True, bidirectional=True)
        self.letters = nn.Embedding(LETTERS, hidden)
        self.decoder = nn.GRU(hidden, hidden, batch_first=True)
        self.attention = nn.MultiheadAttention(hidden, 4, batch_first=True)
        self.out = nn.Linear(2 * hidden, LETTERS)

    def forward(self, sound, letters):
        memory, _ = self.encoder(sound)
        state, _ = self.decoder(self.letters(letters))
        context, _ = self.attention(state, memory, memory, need_weights=False)
        return self.out(torch.cat([state, context], -1))

    def training_step(self, batch, batch_idx):
        sound, letters = batch
        logits = self(sound, letters[:, :-1])
        loss = nn.functional.cross_entropy(logits.transpose(1, 2), letters[:, 1:], ignore_index=0)
        self.log("loss", loss)
        if batch_idx % RATE_EVERY == 0:
            self.log("cer", error_rate(logits.detach(), letters[:, 1:]), prog_bar=True)
        return loss

    def validation_step(self, batch, batch_idx):
        sound, letters = batch
        logits = self(sound, letters[:, :-1])
        self.log("val_loss", nn.functional.cross_entropy(logits.transpose(1, 2), letters[:, 1:], ignore_index=0))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


class Recordings(pl.LightningDataModule):
    def __init__(self, size=2560, batch=32):
        super().__init__()
        self.size, self.batch = size, batch

    def setup(self, stage):
        g = torch.Generator().manual_seed(8)
        letters = torch.randint(1, LETTERS, (self.size + 64, LONGEST + 1), generator=g)
        sound = torch.randn(LETTERS, 40, generator=g)[letters[:, 1:].repeat_interleave(FRAMES // LONGEST, 1)]
        sound += 0.5 * torch.randn(sound.shape, generator=g)
        self.train = TensorDataset(sound[: self.size], letters[: self.size])
        self.val = TensorDataset(sound[self.size :], letters[self.size :])

    def train_dataloader(self):
        return DataLoader(self.train, self.batch, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val, 64)


if __name__ == "__main__":
    pl.seed_everything(21, verbose=False)
    trainer = pl.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, gradient_clip_val=1.0, num_sanity_val_steps=0,
    )
    start = time.time()
    trainer.fit(Dictation(), datamodule=Recordings())
    print(f"training took {time.time() - start:.2f} s", {k: round(float(v), 3) for k, v in trainer.callback_metrics.items()})
