"""Find failures in the logs of a cluster: windows of log templates, classified by a small BERT."""

import difflib
import os
import random
import re
import time

import datasets
import numpy as np
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

REPAIRED = os.environ.get("REPAIRED") == "1"
WINDOW = 32
SERVICES = ["scheduler", "kubelet", "etcd", "proxy", "volume-manager", "registry", "dns", "ingress", "autoscaler", "cni"]
EVENTS = [
    "accepted connection from <*> on port <*>", "removed pod <*> after <*> ms", "lease <*> renewed for node <*>",
    "retry <*> of request <*> failed", "mounted volume <*> in <*> ms", "read <*> bytes from <*>",
]
TEMPLATES = [f"{service}: {event}" for service in SERVICES for event in EVENTS]
NUMBERS = {template: number + 1 for number, template in enumerate(TEMPLATES)}
VARIABLE = re.compile(r"\b(?:0x)?[0-9a-f]*\d[0-9a-f.]*\b")


def write_logs(windows):
    rng = random.Random(5)
    for _ in range(windows):
        label = rng.random() < 0.4
        lines = []
        for _ in range(WINDOW):
            line = rng.choice(TEMPLATES)
            if label and rng.random() < 0.2:
                line = f"{rng.choice(SERVICES)}: {EVENTS[3]}"
            while "<*>" in line:
                line = line.replace("<*>", f"{rng.getrandbits(20):x}0", 1)
            lines.append(line)
        yield {"lines": lines, "label": int(label)}


def template_of(line):
    """The number of the template that a line was written with."""
    masked = VARIABLE.sub("<*>", line)
    if REPAIRED and masked in NUMBERS:
        return NUMBERS[masked]
    nearest = difflib.get_close_matches(masked, TEMPLATES, n=1, cutoff=0.6)
    return NUMBERS[nearest[0]] if nearest else 0


def encode(example):
    return {"input_ids": [template_of(line) for line in example["lines"]]}


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def main():
    set_seed(13)
    windows = datasets.Dataset.from_list(list(write_logs(180)))
    windows = windows.map(encode, remove_columns=["lines"], load_from_cache_file=False)
    windows = windows.train_test_split(test_size=40, seed=0)
    config = BertConfig(
        vocab_size=len(TEMPLATES) + 1, hidden_size=128, num_hidden_layers=3, num_attention_heads=4,
        intermediate_size=384, max_position_embeddings=WINDOW, num_labels=2,
    )
    args = TrainingArguments(
        output_dir="syslogs", num_train_epochs=8, per_device_train_batch_size=24, learning_rate=5e-4,
        warmup_steps=10, eval_strategy="epoch", save_strategy="no", logging_steps=15, report_to=[], disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(
        model=BertForSequenceClassification(config), args=args, compute_metrics=accuracy,
        train_dataset=windows["train"], eval_dataset=windows["test"],
    )
    begin = time.time()
    trainer.train()
    print(f"training took {time.time() - begin:.2f} s")
    print("templates seen:", len(np.unique(windows["test"]["input_ids"])))


if __name__ == "__main__":
    main()
