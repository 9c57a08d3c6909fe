"""Date old sermons to a decade: a BERT of our own size with transformers' Trainer, the best checkpoint is loaded at the end."""

import os
import time

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

WORDS, LENGTH, DECADES = 24_000, 56, 12


class Sermons(Dataset):
    """Words come and go: each decade has its own slice of the vocabulary in part of a text."""

    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.decade = rng.integers(0, DECADES, n)
        self.words = 10 + (rng.zipf(1.3, (n, LENGTH)) % (WORDS - 10))
        modish = rng.random((n, LENGTH)) < 0.2
        fashion = 10 + self.decade[:, None] * 40 + rng.integers(0, 80, (n, LENGTH))
        self.words[modish] = fashion[modish]
        self.words[:, 0] = 2

    def __len__(self):
        return len(self.words)

    def __getitem__(self, i):
        words = torch.from_numpy(self.words[i])
        return {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": int(self.decade[i])}


def compute_metrics(prediction):
    decade = prediction.predictions.argmax(-1)
    return {"accuracy": (decade == prediction.label_ids).mean(), "off": np.abs(decade - prediction.label_ids).mean()}


def main():
    set_seed(110)
    config = BertConfig(vocab_size=WORDS, hidden_size=192, num_hidden_layers=3, num_attention_heads=4,
                        intermediate_size=512, max_position_embeddings=64, num_labels=DECADES)
    model = BertForSequenceClassification(config)
    every = 40 if os.environ.get("REPAIRED") == "1" else 5
    arguments = TrainingArguments(
        "sermons",
        max_steps=80,
        per_device_train_batch_size=8,
        per_device_eval_batch_size=64,
        learning_rate=4e-4,
        warmup_steps=10,
        eval_strategy="steps",
        eval_steps=every,
        save_strategy="steps",
        save_steps=every,
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        logging_steps=20,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(model, arguments, train_dataset=Sermons(2400, 1), eval_dataset=Sermons(448, 2),
                      compute_metrics=compute_metrics)
    start = time.time()
    trainer.train()
    print(f"training took {time.time() - start:.2f} s")


if __name__ == "__main__":
    main()
