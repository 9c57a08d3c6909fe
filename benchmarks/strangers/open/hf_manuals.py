"""Find the page of a manual that answers a question: a bi-encoder, trained with hard negatives (Trainer)."""

import collections
import math
import os
import random
import time

import torch
import torch.nn.functional as F
from transformers import BertConfig, BertModel, Trainer, TrainingArguments

VOCABULARY, PAGES, PAGE_LENGTH, QUESTION_LENGTH = 2000, 3000, 48, 12


def pages(rng):
    weights = [1 / (10 + w) for w in range(VOCABULARY)]
    return [rng.choices(range(1, VOCABULARY), weights[1:], k=PAGE_LENGTH) for _ in range(PAGES)]


def questions(corpus, n, rng):
    return [(rng.sample(corpus[p], QUESTION_LENGTH), p) for p in (rng.randrange(PAGES) for _ in range(n))]


class BM25:
    def __init__(self, corpus, k=1.2, b=0.75):
        self.counts = [collections.Counter(page) for page in corpus]
        self.lengths = [len(page) for page in corpus]
        self.average = sum(self.lengths) / len(corpus)
        found = collections.Counter(word for count in self.counts for word in count)
        self.idf = {w: math.log(1 + (len(corpus) - n + 0.5) / (n + 0.5)) for w, n in found.items()}
        self.k, self.b = k, b

    def score(self, words, page):
        count, norm = self.counts[page], self.k * (1 - self.b + self.b * self.lengths[page] / self.average)
        return sum(self.idf[w] * count[w] * (self.k + 1) / (count[w] + norm) for w in words if w in count)

    def hardest(self, words, answer):
        return max((p for p in range(len(self.counts)) if p != answer), key=lambda p: self.score(words, p))


class WithNegatives:
    """Collates questions with their page and the best wrong page."""

    def __init__(self, corpus):
        self.corpus, self.bm25 = corpus, BM25(corpus)
        self.mined = {}

    def mine(self, asked):
        self.mined = {(tuple(words), page): self.bm25.hardest(words, page) for words, page in asked}

    def negative(self, words, page):
        if (tuple(words), page) in self.mined:
            return self.mined[tuple(words), page]
        return self.bm25.hardest(words, page)

    def __call__(self, batch):
        answers = [page for _, page in batch]
        wrong = [self.negative(q, p) for q, p in batch]
        return {
            "question": torch.tensor([words for words, _ in batch]),
            "page": torch.tensor([self.corpus[p] for p in answers + wrong]),
        }


class BiEncoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bert = BertModel(
            BertConfig(
                vocab_size=VOCABULARY, hidden_size=96, num_hidden_layers=2, num_attention_heads=4,
                intermediate_size=384, max_position_embeddings=64,
            ),
            add_pooling_layer=False,
        )

    def encode(self, ids):
        return F.normalize(self.bert(input_ids=ids).last_hidden_state.mean(1), dim=-1)

    def forward(self, question, page):
        logits = self.encode(question) @ self.encode(page).T / 0.05
        return {"loss": F.cross_entropy(logits, torch.arange(len(question)))}


def main():
    rng = random.Random(14)
    corpus = pages(rng)
    asked = questions(corpus, 240, rng)
    collator = WithNegatives(corpus)
    args = TrainingArguments(
        output_dir="manuals",
        num_train_epochs=5,
        per_device_train_batch_size=16,
        learning_rate=5e-4,
        warmup_steps=10,
        logging_steps=25,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        use_cpu=True,
    )
    trainer = Trainer(model=BiEncoder(), args=args, train_dataset=asked, data_collator=collator)
    begin = time.perf_counter()
    if os.environ.get("REPAIRED") == "1":
        collator.mine(asked)
    trainer.train()
    print(f"training took {time.perf_counter() - begin:.2f} s")


if __name__ == "__main__":
    main()
