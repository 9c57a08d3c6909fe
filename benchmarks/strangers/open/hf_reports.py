"""Code medical reports with many rare words: transformers' Trainer, several labels for each report."""

import os
import time

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, BertConfig, Trainer, TrainingArguments, set_seed

CODES = 30
SAVE_STEPS = 240 if os.environ.get("REPAIRED") == "1" else 8
set_seed(99)


def make_reports(n, words=70_000, length=48):
    rng = np.random.default_rng(5)
    ids = np.minimum(rng.zipf(1.2, (n, length)) + 5, words - 1)
    codes = (rng.random((n, CODES)) < 0.1).astype(np.float32)
    return [
        {"input_ids": i, "attention_mask": np.ones(length, np.int64), "labels": c} for i, c in zip(ids, codes)
    ]


config = BertConfig(
    vocab_size=70_000,
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=512,
    max_position_embeddings=64,
    num_labels=CODES,
)
model = AutoModelForSequenceClassification.from_config(config)


def f1(prediction):
    chosen, labels = prediction.predictions > 0, prediction.label_ids > 0.5
    both = (chosen & labels).sum()
    return {"f1": 2 * both / max(1, chosen.sum() + labels.sum())}


trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir="reports",
        max_steps=240,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=48,
        learning_rate=2e-4,
        weight_decay=0.01,
        eval_strategy="epoch",
        save_strategy="steps",
        save_steps=SAVE_STEPS,
        save_total_limit=2,
        logging_steps=40,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    ),
    train_dataset=make_reports(1920),
    eval_dataset=make_reports(96),
    compute_metrics=f1,
)
t0 = time.time()
trainer.train()
print(f"training took {time.time() - t0:.2f} s")
print(trainer.evaluate())
