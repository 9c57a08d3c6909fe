"""A tiny GPT-2 that writes haiku, letter by letter, with the transformers Trainer."""
import os
import time

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

LETTERS = "\n abcdefghijklmnopqrstuvwxyz"
WORDS = "old pond frog leaps in sound of water moon snow fall light wind over the autumn field crow on branch".split()
READ_EVERY = 80 if os.environ.get("REPAIRED") == "1" else 3


def haiku(rng):
    return "\n".join(" ".join(rng.choice(WORDS, n)) for n in (4, 5, 4))


def poems(n, length=80, seed=3):
    rng = np.random.default_rng(seed)
    text = "\n\n".join(haiku(rng) for _ in range(n * 2))
    ids = torch.tensor([LETTERS.index(c) for c in text])
    starts = rng.integers(0, len(ids) - length, n)
    return [{"input_ids": ids[s:s + length], "labels": ids[s:s + length]} for s in starts]


class Poet(TrainerCallback):
    """Writes down what the model has learnt to say."""

    def __init__(self, path):
        self.path = path

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step % READ_EVERY:
            return
        start = torch.tensor([[LETTERS.index(c)] for c in "os"])
        written = model.generate(
            start, attention_mask=torch.ones_like(start), max_new_tokens=60, do_sample=True, temperature=0.8,
            pad_token_id=0,
        )
        with open(self.path, "a") as file:
            for poem in written.tolist():
                file.write(f"--- {state.global_step}\n" + "".join(LETTERS[i] for i in poem) + "\n")
        model.train()


set_seed(17)
model = GPT2LMHeadModel(GPT2Config(
    vocab_size=len(LETTERS), n_positions=96, n_embd=144, n_layer=4, n_head=4, bos_token_id=0, eos_token_id=None,
))
arguments = TrainingArguments(
    output_dir="haiku", max_steps=160, per_device_train_batch_size=6, learning_rate=1e-3, lr_scheduler_type="cosine",
    warmup_steps=20, logging_steps=25, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True,
)
trainer = Trainer(model=model, args=arguments, train_dataset=poems(2400), callbacks=[Poet("haiku.txt")])
clock = time.time()
trainer.train()
print(f"training took {time.time() - clock:.2f} s")
