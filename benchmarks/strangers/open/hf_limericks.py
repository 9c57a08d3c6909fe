"""A small GPT-2 learns limericks letter by letter; now and then it shows what it would write."""

import os
import random
import time

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

LETTERS = "\n abcdefghijklmnopqrstuvwxyz,.'"
IDS = {letter: i for i, letter in enumerate(LETTERS)}
BLOCK = 96

RHYMES = [["dover", "clover", "rover", "over"], ["leeds", "beads", "weeds", "reads"], ["kent", "tent", "spent", "bent"],
          ["crete", "feet", "wheat", "neat"], ["spain", "train", "rain", "plain"]]  # fmt: skip
WHO = ["a young man", "an old cook", "a tall nun", "a shy clerk", "a lost duke"]
DID = ["who was fond of", "who had lost all", "who would sing of", "who once stole"]


def limerick(rnd):
    a, b = rnd.sample(RHYMES, 2)
    x, y, z = rnd.sample(a, 3)
    u, v = rnd.sample(b, 2)
    return (f"there was {rnd.choice(WHO)} from {x},\n{rnd.choice(DID)} the {y}.\nhe {rnd.choice(['sat', 'fell'])} on "
            f"the {u},\nand he asked for a {v},\nthat {rnd.choice(['silly', 'poor'])} one, never {z}.\n\n")


class Letters(Dataset):
    def __init__(self, n=4000):
        rnd = random.Random(3)
        text = "".join(limerick(rnd) for _ in range(n))
        self.ids = torch.tensor([IDS[letter] for letter in text])

    def __len__(self):
        return (len(self.ids) - 1) // BLOCK

    def __getitem__(self, i):
        ids = self.ids[i * BLOCK : (i + 1) * BLOCK]
        return {"input_ids": ids, "labels": ids}


class Recite(TrainerCallback):
    """Let the model write a few verses."""

    def __init__(self, every, verses=4):
        self.every, self.verses = every, verses
        self.album = []

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step % self.every:
            return
        model.eval()
        prompt = torch.tensor([[IDS[letter] for letter in "there was "]] * self.verses)
        with torch.no_grad():
            written = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=110, do_sample=True,
                                     temperature=0.8, pad_token_id=0)
        model.train()
        self.album.append(["".join(LETTERS[i] for i in verse) for verse in written.tolist()])


def main():
    set_seed(9)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(LETTERS), n_positions=128, n_embd=128, n_layer=4, n_head=4,
                                       bos_token_id=0, eos_token_id=None))
    recite = Recite(every=75 if os.environ.get("REPAIRED") == "1" else 4)
    arguments = TrainingArguments(
        "limericks",
        max_steps=150,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        warmup_steps=20,
        logging_steps=50,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    )
    trainer = Trainer(model, arguments, train_dataset=Letters(), callbacks=[recite])
    since = time.perf_counter()
    trainer.train()
    took = time.perf_counter() - since
    print(recite.album[-1][0])
    print(f"training took {took:.2f} s")


if __name__ == "__main__":
    main()
