"""Sort news titles into topics with transformers' Trainer."""

import time

import numpy as np
import torch
from transformers import DistilBertConfig, DistilBertForSequenceClassification, Trainer, TrainingArguments

TOPICS = ["world", "sports", "business", "science"]


class Titles(torch.utils.data.Dataset):
    def __init__(self, count, seed):
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, len(TOPICS), count)
        self.ids = rng.integers(10, 2000, (count, 32)) + self.labels[:, None]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {
            "input_ids": torch.tensor(self.ids[index]),
            "attention_mask": torch.ones(32, dtype=torch.long),
            "labels": torch.tensor(self.labels[index]),
        }


def compute_metrics(prediction):
    guessed = prediction.predictions.argmax(-1)
    return {"accuracy": float((guessed == prediction.label_ids).mean())}


model = DistilBertForSequenceClassification(
    DistilBertConfig(vocab_size=2100, dim=160, n_layers=3, n_heads=4, hidden_dim=640, num_labels=len(TOPICS))
)
arguments = TrainingArguments(
    output_dir="titles",
    num_train_epochs=2,
    per_device_train_batch_size=16,
    per_device_eval_batch_size=64,
    learning_rate=5e-4,
    warmup_steps=20,
    logging_steps=50,
    eval_strategy="epoch",
    save_strategy="epoch",
    save_total_limit=1,
    report_to="none",
    disable_tqdm=True,
    use_cpu=True,
)
trainer = Trainer(
    model=model,
    args=arguments,
    train_dataset=Titles(3200, 0),
    eval_dataset=Titles(256, 1),
    compute_metrics=compute_metrics,
)
start = time.time()
trainer.train()
print(f"training took {time.time() - start:.2f} s")
