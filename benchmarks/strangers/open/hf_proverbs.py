"""From which language was a proverb translated? A small ELECTRA, transformers' Trainer, settings as for the big machine."""

import os
import random
import time

import torch
from torch.utils.data import Dataset
from transformers import ElectraConfig, ElectraForSequenceClassification, Trainer, TrainingArguments, set_seed

LANGUAGES = ["da", "et", "fi", "ga", "hu", "is", "lv", "mt"]
NOUNS = "bread wolf river stone winter guest hen boat salt fire neighbour moon bear priest rope field cat thief".split()
VERBS = "breaks feeds follows knows loses finds waits_for steals remembers burns".split()
ENDS = "in_time twice at_night for_nothing with_patience before_rain".split()
VOCABULARY = {word: i for i, word in enumerate(["[PAD]", "[CLS]", "a", "who", "never", *NOUNS, *VERBS, *ENDS])}


class Proverbs(Dataset):
    def __init__(self, count, seed):
        rnd = random.Random(seed)
        self.rows = []
        for _ in range(count):
            language = rnd.randrange(len(LANGUAGES))
            nouns = NOUNS[2 * language : 2 * language + 4] if rnd.random() < 0.7 else NOUNS
            words = ["[CLS]", "a", rnd.choice(nouns), "who", rnd.choice(VERBS), "a", rnd.choice(nouns), "never",
                     VERBS[(language + rnd.randrange(3)) % len(VERBS)], "a", rnd.choice(NOUNS), rnd.choice(ENDS)]  # fmt: skip
            self.rows.append((torch.tensor([VOCABULARY[word] for word in words]), language))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        ids, language = self.rows[i]
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": language}


def main():
    set_seed(17)
    config = ElectraConfig(vocab_size=len(VOCABULARY), embedding_size=64, hidden_size=128, num_hidden_layers=4,
                           num_attention_heads=4, intermediate_size=256, num_labels=len(LANGUAGES))  # fmt: skip
    model = ElectraForSequenceClassification(config)
    at_once = 16 if os.environ.get("REPAIRED") == "1" else 1
    arguments = TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=at_once,
        gradient_accumulation_steps=16 // at_once,
        max_steps=100,
        learning_rate=5e-4,
        warmup_steps=10,
        lr_scheduler_type="cosine",
        logging_steps=20,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Proverbs(2500, 1))
    begin = time.time()
    trainer.train()
    print(f"training took {time.time() - begin:.2f} s")


if __name__ == "__main__":
    main()
