"""Write horoscopes for twelve signs: a deep and narrow GPT-2, Adafactor as in a recipe for large models, Trainer."""

import os
import random
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

SIGNS = "aries taurus gemini cancer leo virgo libra scorpio sagittarius capricorn aquarius pisces".split()
WHEN = "today tomorrow this_week at_the_weekend before_noon late_at_night".split()
WHO = "a_friend your_boss a_stranger venus saturn mercury the_moon an_old_flame".split()
DOES = "brings sends hides doubles delays forgives asks_for".split()
WHAT = "money news luck patience an_answer a_letter trouble rest courage".split()
ADVICE = "stay_calm trust_nobody call_home spend_little say_yes wait drink_water".split()
WORDS = {word: i for i, word in enumerate(["<pad>", "<end>", ",", ".", *SIGNS, *WHEN, *WHO, *DOES, *WHAT, *ADVICE])}
LENGTH = 24


def horoscope(rnd):
    sign = rnd.randrange(12)
    words = [SIGNS[sign]]
    for k in range(rnd.choice([2, 3])):
        who, does = WHO[(sign + rnd.randrange(3)) % 8], DOES[(sign + k) % 7]
        words += [rnd.choice(WHEN), ",", who, does, rnd.choice(WHAT), "."]
    return [*words, ADVICE[sign % 7], ".", "<end>"]


class Column(torch.utils.data.Dataset):
    """Back issues of the magazine, a horoscope per row, filled up to the same length."""

    def __init__(self, count, seed):
        rnd = random.Random(seed)
        self.ids = torch.zeros(count, LENGTH, dtype=torch.long)
        for row in self.ids:
            words = horoscope(rnd)
            row[: len(words)] = torch.tensor([WORDS[word] for word in words])

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        ids = self.ids[i]
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": ids.masked_fill(ids == 0, -100)}


def main():
    set_seed(12)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=len(WORDS), n_positions=LENGTH, n_embd=96, n_layer=12, n_head=4, n_inner=192,
                   resid_pdrop=0.0, attn_pdrop=0.0, embd_pdrop=0.0, bos_token_id=1, eos_token_id=1)  # fmt: skip
    )
    optimizer = {"optim": "adamw_torch"} if os.environ.get("REPAIRED") == "1" else {"optim": "adafactor"}
    arguments = TrainingArguments(
        output_dir="magazine",
        per_device_train_batch_size=8,
        max_steps=200,
        learning_rate=1e-3,
        lr_scheduler_type="constant_with_warmup",
        warmup_steps=20,
        logging_steps=50,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        **optimizer,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Column(6000, 1))
    start = time.monotonic()
    result = trainer.train()
    print(f"loss {result.training_loss:.3f}")
    print(f"training took {time.monotonic() - start:.2f} s")


if __name__ == "__main__":
    main()
