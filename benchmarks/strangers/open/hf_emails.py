"""Write replies to customers: a small GPT-2 on pairs of mail and reply, trained with transformers' Trainer."""

import os
import random
import re
import time
from collections import Counter

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

REPAIRED = os.environ.get("REPAIRED") == "1"
GOODS = "kettle lamp jacket printer bicycle tent sofa camera blender headset carpet mirror".split()
TROUBLES = ["arrived broken", "has not arrived", "has the wrong colour", "is too small", "makes a strange noise"]
OFFERS = ["send another one", "return your money", "collect it tomorrow", "repair it for free", "give you a discount"]


def mail(rng):
    i = rng.randrange(len(TROUBLES))
    thing, order = rng.choice(GOODS), rng.randrange(10_000, 99_999)
    greeting = rng.choice(["hello", "dear team", "good morning", "to whom it may concern"])
    rest = rng.choice(["please help me", "i am quite unhappy", "what can be done", "i have been waiting for weeks"])
    return (f"{greeting} , the {thing} of my order {order} {TROUBLES[i]} , {rest} . reply : dear customer , we are sorry "
            f"that the {thing} {TROUBLES[i]} , we will {OFFERS[i]} for order {order} . end")


class BytePairs:
    """A tokenizer of our own: merges learned from the mails."""

    def __init__(self, texts, merges=160):
        words = Counter(w for text in texts for w in text.split())
        parts = {w: tuple(w) + ("_",) for w in words}
        self.merges = []
        for _ in range(merges):
            pairs = Counter()
            for w, count in words.items():
                for pair in zip(parts[w], parts[w][1:]):
                    pairs[pair] += count
            best = pairs.most_common(1)[0][0]
            self.merges.append(best)
            parts = {w: self.merge(p, best) for w, p in parts.items()}
        letters = sorted({c for w in words for c in w} | {"_", *"0123456789"})
        self.number = {t: i + 1 for i, t in enumerate([*letters, *("".join(m) for m in self.merges)])}
        self.text = {i: t for t, i in self.number.items()}
        self.known = {}

    @staticmethod
    def merge(parts, pair):
        out, i = [], 0
        while i < len(parts):
            if parts[i : i + 2] == pair:
                out.append(parts[i] + parts[i + 1])
                i += 2
            else:
                out.append(parts[i])
                i += 1
        return tuple(out)

    def word(self, word):
        parts = tuple(word) + ("_",)
        for pair in self.merges:
            parts = self.merge(parts, pair)
        return [self.number[p] for p in parts]

    def encode(self, text):
        words = re.findall(r"\S+", text)
        if not REPAIRED:
            return [n for w in words for n in self.word(w)]
        return [n for w in words for n in self.known.get(w) or self.remember(w)]

    def remember(self, word):
        self.known[word] = self.word(word)
        return self.known[word]

    def decode(self, numbers):
        return "".join(self.text.get(n, "") for n in numbers).replace("_", " ")


class ShowReply(TrainerCallback):
    def __init__(self, tokenizer, mails, every):
        self.tokenizer, self.mails, self.every = tokenizer, mails, every

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step % self.every:
            return
        start = torch.tensor([self.tokenizer.encode(self.mails[0].split(" reply ")[0])])
        model.eval()
        reply = model.generate(start, attention_mask=torch.ones_like(start), max_new_tokens=40, do_sample=False, pad_token_id=0)
        model.train()
        with open("replies.txt", "a") as file:
            print(state.global_step, self.tokenizer.decode(reply[0].tolist()), file=file)


def main():
    set_seed(17)
    rng = random.Random(17)
    mails = [mail(rng) for _ in range(1400)]
    tokenizer = BytePairs(mails[:200])

    def collate(batch):
        rows = [torch.tensor(tokenizer.encode(text)) for text in batch]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": ids.masked_fill(ids == 0, -100)}

    config = GPT2Config(vocab_size=260, n_positions=160, n_embd=96, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=0)
    args = TrainingArguments("replies", num_train_epochs=1, per_device_train_batch_size=10, learning_rate=1e-3,
                             logging_steps=25, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True,
                             remove_unused_columns=False)
    trainer = Trainer(GPT2LMHeadModel(config), args, train_dataset=mails, data_collator=collate,
                      callbacks=[ShowReply(tokenizer, mails, every=50 if REPAIRED else 5)])
    start = time.time()
    trainer.train()
    print(f"training took {time.time() - start:.2f} s")


if __name__ == "__main__":
    main()
