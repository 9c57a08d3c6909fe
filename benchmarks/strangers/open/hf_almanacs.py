#!/usr/bin/env python
"""Pretrain a small RoBERTa on farmers' almanacs by masking words, with the Trainer; perplexity on the last year."""

import logging
import math
import random
import time
from dataclasses import dataclass, field

import torch
from transformers import HfArgumentParser, RobertaConfig, RobertaForMaskedLM, Trainer, TrainingArguments, set_seed

logger = logging.getLogger(__name__)
MONTHS = "january february march april may june july august september october november december".split()
SIGNS = "red_sky ring_moon low_swallows early_frost warm_fog late_snow loud_owls thick_onions".split()
OUTCOMES = "rain drought storm thaw heat hail wind frost".split()
ADVICE = "sow barley prune vines shear sheep cut hay dig potatoes salt pork mend roofs brew ale".split()


@dataclass
class DataArguments:
    years: int = field(default=60)
    block: int = field(default=96)
    probability: float = field(default=0.15)


class Words:
    def __init__(self):
        known = ["<s>", "<pad>", "</s>", "<mask>", "if", "in", "then", "then_comes", "do", ".", *MONTHS, *SIGNS, *OUTCOMES]
        self.ids = {word: i for i, word in enumerate([*known, *dict.fromkeys(ADVICE)])}
        self.pad, self.mask = self.ids["<pad>"], self.ids["<mask>"]

    def __call__(self, words):
        return [self.ids[word] for word in words]


def almanac(year):
    rnd = random.Random(year)
    for number, month in enumerate(MONTHS):
        for _ in range(30):
            sign = rnd.randrange(len(SIGNS))
            yield from ["if", SIGNS[sign], "in", month, "then_comes", OUTCOMES[(sign + number) % len(OUTCOMES)], "do"]
            yield from [*ADVICE[2 * (number % 8) : 2 * (number % 8) + 2], "."]


def blocks(words, years, length):
    ids = torch.tensor([i for year in years for i in words(almanac(year))])
    return [{"input_ids": block} for block in ids[: len(ids) // length * length].view(-1, length)]


class MaskWords:
    def __init__(self, words, probability):
        self.words, self.probability = words, probability

    def __call__(self, examples):
        ids = torch.stack([example["input_ids"] for example in examples])
        chosen = torch.rand(ids.shape) < self.probability
        labels = torch.where(chosen, ids, -100)
        masked = torch.where(chosen & (torch.rand(ids.shape) < 0.9), self.words.mask, ids)
        return {"input_ids": masked, "attention_mask": torch.ones_like(ids), "labels": labels}


def main():
    parser = HfArgumentParser((DataArguments, TrainingArguments))
    data, training = parser.parse_dict({
        "output_dir": "almanac-roberta", "per_device_train_batch_size": 16, "per_device_eval_batch_size": 32,
        "max_steps": 84, "eval_strategy": "steps", "eval_steps": 42, "save_strategy": "no", "logging_steps": 25,
        "learning_rate": 6e-4, "warmup_steps": 15, "weight_decay": 0.01, "adam_beta2": 0.98, "max_grad_norm": 1.0,
        "report_to": "none", "disable_tqdm": True, "use_cpu": True, "seed": 1750,
    })  # fmt: skip
    logging.basicConfig(level=logging.INFO)
    set_seed(training.seed)
    words = Words()
    config = RobertaConfig(vocab_size=len(words.ids), hidden_size=128, num_hidden_layers=4, num_attention_heads=4,
                           intermediate_size=512, max_position_embeddings=data.block + 4, pad_token_id=words.pad)  # fmt: skip
    trainer = Trainer(
        model=RobertaForMaskedLM(config),
        args=training,
        train_dataset=blocks(words, range(1750, 1750 + data.years), data.block),
        eval_dataset=blocks(words, [1850], data.block)[:32],
        data_collator=MaskWords(words, data.probability),
    )
    start = time.perf_counter()
    trainer.train()
    took = time.perf_counter() - start
    logger.info("perplexity %.2f", math.exp(trainer.evaluate()["eval_loss"]))
    print(f"training took {took:.2f} s")


if __name__ == "__main__":
    main()
