#!/usr/bin/env python3
"""Expand the abbreviations of Roman epitaphs ("D M" is "dis manibus"): a small T5, letters as tokens, Trainer."""

import argparse
import random
import time
from dataclasses import dataclass

import torch
from datasets import Dataset
from transformers import T5Config, T5ForConditionalGeneration, Trainer, TrainingArguments, set_seed

FULL = {
    "D M": "dis manibus",
    "H S E": "hic situs est",
    "S T T L": "sit tibi terra levis",
    "VIX ANN": "vixit annis",
    "B M F": "bene merenti fecit",
    "CONI": "coniugi",
    "FIL": "filius",
    "LIB": "libertus",
}
NAMES = "IVLIA MARCVS CLAVDIA LVCIVS FLAVIVS AVRELIA TITVS CORNELIA GAIVS OCTAVIA".split()
LETTERS = {c: i for i, c in enumerate(["<pad>", "</s>", *"abcdefghijklmnopqrstuvwxyzABCDEFGHILMNOPQRSTVX "])}


def stone(rnd):
    name, years = rnd.choice(NAMES), "X" * rnd.randint(1, 7) + "V" * rnd.randint(0, 1) + "I" * rnd.randint(0, 3)
    relation, end = rnd.choice(["FIL", "LIB", "CONI"]), rnd.choice(["H S E", "S T T L", "B M F"])
    words = ["D M", name, relation, "VIX ANN", years, end]
    read = " ".join(FULL.get(word, word.lower()) for word in words)
    return {"input_ids": encode(" ".join(words), 40), "labels": encode(read, 72)}


def encode(text, length):
    return ([LETTERS[c] for c in text] + [1])[:length]


@dataclass
class Collator:
    """Fill up to a multiple of eight."""

    multiple: int = 8

    def __call__(self, rows):
        out = {}
        for name, filler in (("input_ids", 0), ("labels", -100)):
            longest = max(len(row[name]) for row in rows)
            width = -(-longest // self.multiple) * self.multiple
            out[name] = torch.tensor([row[name] + [filler] * (width - len(row[name])) for row in rows])
        out["attention_mask"] = (out["input_ids"] != 0).long()
        return out


def exact(prediction):
    logits = prediction.predictions[0] if isinstance(prediction.predictions, tuple) else prediction.predictions
    known = prediction.label_ids != -100
    return {"letters": float((logits.argmax(-1) == prediction.label_ids)[known].mean())}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--stones", type=int, default=720)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--epochs", type=float, default=2)
    options = parser.parse_args()
    set_seed(79)
    rnd = random.Random(79)
    found = Dataset.from_list([stone(rnd) for _ in range(options.stones + 96)])
    parts = found.train_test_split(96, seed=0)
    config = T5Config(vocab_size=len(LETTERS), d_model=options.width, d_kv=32, num_heads=4,
                      d_ff=2 * options.width, num_layers=3, dropout_rate=0.05,
                      pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)  # fmt: skip
    arguments = TrainingArguments(
        "epigraphy",
        num_train_epochs=options.epochs,
        per_device_train_batch_size=options.batch,
        per_device_eval_batch_size=48,
        eval_strategy="epoch",
        save_strategy="no",
        learning_rate=2e-3,
        lr_scheduler_type="linear",
        warmup_steps=10,
        max_grad_norm=1.0,
        logging_steps=30,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(
        model=T5ForConditionalGeneration(config),
        args=arguments,
        train_dataset=parts["train"],
        eval_dataset=parts["test"],
        data_collator=Collator(),
        compute_metrics=exact,
    )
    begin = time.perf_counter()
    trainer.train()
    print(f"training took {time.perf_counter() - begin:.2f} s")


if __name__ == "__main__":
    main()
