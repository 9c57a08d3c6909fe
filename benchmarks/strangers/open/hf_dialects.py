"""Where does a speaker come from? Transcripts of interviews, from "yes" to long stories; DistilBERT from scratch, Trainer."""

import math
import os
import time

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    DistilBertConfig,
    DistilBertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

REGIONS, WORDS, LONGEST = 9, 2000, 224
by_length = os.environ.get("REPAIRED") == "1"


class Interviews(Dataset):
    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        habit = np.random.default_rng(0).dirichlet(np.full(WORDS - 3, 0.05), REGIONS)
        self.regions = rng.integers(0, REGIONS, n)
        length = np.minimum(LONGEST, 4 + rng.lognormal(math.log(28), 1.0, n)).astype(int)
        self.answers = [rng.choice(WORDS - 3, size, p=habit[r]) + 3 for r, size in zip(self.regions, length)]

    def __len__(self):
        return len(self.answers)

    def __getitem__(self, i):
        ids = [1, *self.answers[i].tolist()]
        return {"input_ids": ids, "length": len(ids), "labels": int(self.regions[i])}


def collate(rows):
    longest = max(len(row["input_ids"]) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    for line, row in zip(ids, rows):
        line[: len(row["input_ids"])] = torch.tensor(row["input_ids"])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.tensor([row["labels"] for row in rows])}


class Losses(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            print(f"step {state.global_step}: {logs['loss']:.3f}", flush=True)


def main():
    set_seed(17)
    config = DistilBertConfig(vocab_size=WORDS, dim=96, hidden_dim=320, n_layers=2, n_heads=4, num_labels=REGIONS,
                              max_position_embeddings=LONGEST + 8)
    args = TrainingArguments(
        "interviews", num_train_epochs=2, per_device_train_batch_size=16, learning_rate=5e-4, lr_scheduler_type="cosine",
        train_sampling_strategy="group_by_length" if by_length else "random", length_column_name="length",
        remove_unused_columns=False, logging_steps=25, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True,
    )
    trainer = Trainer(DistilBertForSequenceClassification(config), args, train_dataset=Interviews(1120, 1),
                      data_collator=collate, callbacks=[Losses()])
    begin = time.perf_counter()
    trainer.train()
    print(f"training took {time.perf_counter() - begin:.2f} s")


if __name__ == "__main__":
    main()
