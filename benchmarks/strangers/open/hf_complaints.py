"""Which department answers a complaint? BERT, small and from scratch, with a tokenizer trained on the complaints."""

import os
import random
import time
from functools import partial

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    default_data_collator,
    set_seed,
)

DEPARTMENTS = ["billing", "transport", "water", "noise", "parks", "schools"]
SYLLABLES = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]


def words_of(department):
    rng = random.Random(department)
    return ["".join(rng.choices(SYLLABLES, k=rng.randint(2, 4))) for _ in range(150)]


def complaints(n, seed):
    """Most people write two or three sentences, a few write a whole page."""
    rng = random.Random(seed)
    vocabulary, everyday = {d: words_of(d) for d in DEPARTMENTS}, words_of("everyday")
    texts, labels = [], []
    for _ in range(n):
        label = rng.randrange(len(DEPARTMENTS))
        length = min(180, max(8, int(rng.lognormvariate(3.2, 0.6))))
        own = vocabulary[DEPARTMENTS[label]]
        texts.append(" ".join(rng.choice(own if rng.random() < 0.4 else everyday) for _ in range(length)))
        labels.append(label)
    return texts, labels


def train_tokenizer(texts):
    raw = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    raw.normalizer = normalizers.BertNormalizer()
    raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    raw.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=1200, special_tokens=special))
    raw.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )


class Complaints(torch.utils.data.Dataset):
    def __init__(self, tokenizer, texts, labels):
        self.encodings, self.labels = tokenizer(texts), labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {k: v[i] for k, v in self.encodings.items() if k != "token_type_ids"} | {"labels": self.labels[i]}


def right(prediction):
    return {"right": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def main():
    set_seed(4)
    texts, labels = complaints(480, seed=0)
    tokenizer = train_tokenizer(texts)
    if os.environ.get("REPAIRED") == "1":
        encode, collator = partial(tokenizer, truncation=True, max_length=256), DataCollatorWithPadding(tokenizer)
    else:
        encode, collator = partial(tokenizer, truncation=True, padding="max_length", max_length=256), default_data_collator
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=96, num_hidden_layers=3, num_attention_heads=4,
        intermediate_size=288, max_position_embeddings=256, num_labels=len(DEPARTMENTS),
    )
    args = TrainingArguments(
        output_dir="complaints", num_train_epochs=2, per_device_train_batch_size=16, per_device_eval_batch_size=32,
        learning_rate=6e-4, warmup_steps=20, logging_steps=20, eval_strategy="epoch", save_strategy="no",
        report_to=[], disable_tqdm=True, use_cpu=True,
    )
    trainer = Trainer(
        model=BertForSequenceClassification(config), args=args, data_collator=collator, compute_metrics=right,
        train_dataset=Complaints(encode, texts, labels), eval_dataset=Complaints(encode, *complaints(64, seed=1)),
    )
    started = time.time()
    trainer.train()
    print(f"training took {time.time() - started:.2f} s")


if __name__ == "__main__":
    main()
