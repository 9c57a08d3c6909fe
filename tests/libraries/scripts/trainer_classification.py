"""transformers' Trainer: a small BERT classifier with evaluation, checkpoints and an early stop."""

import tempfile

import counted
import torch
from transformers import BertConfig, BertForSequenceClassification, EarlyStoppingCallback, Trainer, TrainingArguments

model = BertForSequenceClassification(
    BertConfig(
        vocab_size=80,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
        num_labels=3,
    )
)


def rows(count):
    return counted.Rows(torch.randint(0, 80, (count, 16)), torch.randint(0, 3, (count,)), names=("input_ids", "labels"))


class Counting(Trainer):
    evaluated = 0

    def prediction_step(self, *args, **kwargs):
        self.evaluated += 1
        return super().prediction_step(*args, **kwargs)


with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        output_dir=folder, per_device_train_batch_size=8, per_device_eval_batch_size=8, num_train_epochs=30,
        eval_strategy="epoch", save_strategy="epoch", save_total_limit=1, load_best_model_at_end=True, logging_steps=4,
        metric_for_best_model="eval_loss", report_to=[], use_cpu=True, disable_tqdm=True, learning_rate=5e-3,
    )  # fmt: skip
    trainer = Counting(
        model, arguments, train_dataset=rows(64), eval_dataset=rows(24), callbacks=[EarlyStoppingCallback(2)]
    )
    trainer.train()
assert trainer.state.epoch < 30
losses = [value for row in trainer.state.log_history for key, value in row.items() if key in {"loss", "eval_loss"}]
counted.finish(model, train=trainer.state.global_step, evaluation=trainer.evaluated, losses=losses)
