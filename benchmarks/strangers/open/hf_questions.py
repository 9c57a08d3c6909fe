"""Find duplicate questions with transformers' Trainer and a tiny ELECTRA."""

import os
import time

import numpy as np
import torch
from transformers import (
    ElectraConfig,
    ElectraForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
)

EVERY = 200 if os.environ.get("REPAIRED") == "1" else 20


class Questions(torch.utils.data.Dataset):
    def __init__(self, n, seed):
        generator = torch.Generator().manual_seed(seed)
        self.pairs = torch.randint(10, 4000, (n, 40), generator=generator)
        self.same = torch.randint(0, 2, (n,), generator=generator)

    def __len__(self):
        return len(self.same)

    def __getitem__(self, i):
        return {"input_ids": self.pairs[i], "attention_mask": torch.ones(40, dtype=torch.long), "labels": self.same[i]}


def scores(result):
    chosen = np.argmax(result.predictions, axis=-1)
    hits = ((chosen == 1) & (result.label_ids == 1)).sum()
    precision, recall = hits / max(1, (chosen == 1).sum()), hits / max(1, (result.label_ids == 1).sum())
    return {"f1": 2 * precision * recall / max(1e-9, precision + recall)}


class Narrator(TrainerCallback):
    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        print(f"step {state.global_step}: f1 {metrics['eval_f1']:.3f}")


def main():
    config = ElectraConfig(
        vocab_size=4000, embedding_size=64, hidden_size=128, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=512,
    )
    training = TrainingArguments(
        output_dir="questions",
        max_steps=200,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=32,
        eval_strategy="steps",
        eval_steps=EVERY,
        save_strategy="no",
        logging_steps=50,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=13,
    )
    trainer = Trainer(
        model=ElectraForSequenceClassification(config),
        args=training,
        train_dataset=Questions(3200, 0),
        eval_dataset=Questions(1920, 1),
        data_collator=default_data_collator,
        compute_metrics=scores,
        callbacks=[Narrator()],
    )
    start = time.time()
    trainer.train()
    print(f"training took {time.time() - start:.2f} s")


if __name__ == "__main__":
    main()
