"""A causal language model of ships' logbooks: LLaMA of our size, blocks of equal length, gradient accumulation."""

import itertools
import random
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

WINDS = ["calm", "light air", "breeze", "gale", "storm"]
POINTS = ["N", "NNE", "NE", "ENE", "E", "ESE", "SE", "SSE", "S", "SSW", "SW", "WSW", "W", "WNW", "NW", "NNW"]


def entries(n, seed=0):
    rng = random.Random(seed)
    day = 0
    for _ in range(n):
        day += 1
        yield (
            f"Day {day}. Wind {rng.choice(POINTS)}, {rng.choice(WINDS)}. "
            f"Course {rng.randrange(360):03d}, made {rng.randrange(20, 190)} miles. "
            f"Lat {rng.randrange(60)}.{rng.randrange(60):02d} {rng.choice('NS')}.\n"
        )


class Blocks(torch.utils.data.Dataset):
    def __init__(self, text, size=128):
        letters = sorted(set(text))
        self.vocabulary = len(letters)
        index = {c: i for i, c in enumerate(letters)}
        ids = torch.tensor([index[c] for c in text])
        self.blocks = ids[: len(ids) // size * size].view(-1, size)

    def __len__(self):
        return len(self.blocks)

    def __getitem__(self, i):
        return {"input_ids": self.blocks[i], "labels": self.blocks[i]}


def main():
    set_seed(3)
    text = "".join(itertools.islice(entries(4000), 4000))
    cut = int(0.95 * len(text))
    train, held_out = Blocks(text[:cut]), Blocks(text[cut:])
    config = LlamaConfig(
        vocab_size=train.vocabulary,
        hidden_size=160,
        intermediate_size=432,
        num_hidden_layers=3,
        num_attention_heads=5,
        num_key_value_heads=5,
        max_position_embeddings=128,
        use_cache=False,
    )
    args = TrainingArguments(
        output_dir="logbook",
        max_steps=35,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=32,
        gradient_accumulation_steps=2,
        learning_rate=2e-3,
        lr_scheduler_type="cosine",
        warmup_steps=5,
        max_grad_norm=1.0,
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(model=LlamaForCausalLM(config), args=args, train_dataset=train, eval_dataset=held_out)
    start = time.perf_counter()
    trainer.train()
    print(f"training took {time.perf_counter() - start:.2f} s")
    trainer.save_model("logbook/last")
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
