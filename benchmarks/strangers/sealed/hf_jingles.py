"""Which product is the jingle for? A small BERT reads it; words made from syllables, batches of similar length."""

from __future__ import annotations

import random
import time

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)

PRODUCTS = "soap soup tea tyres cocoa biscuits socks lamps shoes butter".split()
SYLLABLES = [a + b for a in "bdfghjklmnprstvwz" for b in ("a", "e", "i", "o", "u", "oo", "ay")]


def jingles(count: int, seed: int) -> tuple[list[str], list[int]]:
    rng = random.Random(seed)
    own = [random.Random(k).sample(SYLLABLES, 14) for k in range(len(PRODUCTS))]
    texts, labels = [], []
    for _ in range(count):
        label = rng.randrange(len(PRODUCTS))
        words = []
        for _ in range(rng.randint(20, 90)):
            source = own[label] if rng.random() < 0.15 else SYLLABLES
            words.append("".join(rng.choice(source) for _ in range(rng.randint(1, 2))))
        texts.append(" ".join(words))
        labels.append(label)
    return texts, labels


def tokenizer_from(texts: list[str]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(
        texts, trainers.WordPieceTrainer(vocab_size=1500, special_tokens=["[PAD]", "[UNK]", "[CLS]"], show_progress=False)
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]")


class Encoded(torch.utils.data.Dataset):
    def __init__(self, tokenizer, texts, labels):
        self.ids = tokenizer(texts, truncation=True, max_length=128)["input_ids"]
        self.labels = labels

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.labels[index]}


def main() -> None:
    set_seed(8)
    texts, labels = jingles(2400, 4)
    tokenizer = tokenizer_from(texts)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=128,
            num_hidden_layers=3,
            num_attention_heads=4,
            intermediate_size=512,
            max_position_embeddings=128,
            num_labels=len(PRODUCTS),
        )
    )
    args = TrainingArguments(
        output_dir="jingles",
        per_device_train_batch_size=24,
        num_train_epochs=1,
        learning_rate=4e-4,
        warmup_steps=20,
        train_sampling_strategy="group_by_length",
        optim="adamw_torch_fused",
        logging_steps=20,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(
        model,
        args,
        train_dataset=Encoded(tokenizer, texts[200:], labels[200:]),
        eval_dataset=Encoded(tokenizer, texts[:200], labels[:200]),
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=lambda seen: {"right": float((seen.predictions.argmax(-1) == seen.label_ids).mean())},
    )
    begin = time.time()
    trainer.train()
    print(f"training took {time.time() - begin:.2f} s")
    print(trainer.evaluate()["eval_right"])


if __name__ == "__main__":
    main()
