"""Find people, places, goods and sums in old merchants' ledgers: a small BERT with a CRF on top, and the Trainer."""

import os
import random
import time

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import BertConfig, BertModel, Trainer, TrainingArguments, set_seed

KINDS = ["person", "place", "goods", "measure", "sum", "coin", "date", "ship"]
TAGS = ["O", *(f"{part}-{kind}" for kind in KINDS for part in "BI")]
LENGTH, WORDS = 40, 2000


class Ledger(Dataset):
    """Entries as "sold to Anna Berg of Lower Marsh three bales of wool for ten florins", as numbers."""

    def __init__(self, entries, seed):
        rng = random.Random(seed)
        self.entries = [self.entry(rng) for _ in range(entries)]

    @staticmethod
    def entry(rng):
        words, tags = [], []
        while len(words) < LENGTH:
            kind = rng.randrange(1 + len(KINDS))
            for k in range(1 if kind == 0 else rng.randint(1, 3)):
                words.append(2 + rng.randrange(WORDS // 10) + (kind + (kind > 0 and k > 0)) * (WORDS // 10))
                tags.append(0 if kind == 0 else 2 * kind - (k == 0))
        return {"input_ids": torch.tensor(words[:LENGTH]), "labels": torch.tensor(tags[:LENGTH])}

    def __len__(self):
        return len(self.entries)

    def __getitem__(self, i):
        return self.entries[i]


class CRF(nn.Module):
    """Scores of whole sequences of tags. `move[i, j]` is the score of going from tag j to tag i."""

    def __init__(self, tags):
        super().__init__()
        self.tags = tags
        self.move = nn.Parameter(0.1 * torch.randn(tags, tags))
        self.first = nn.Parameter(torch.zeros(tags))

    def partition(self, scores):
        alpha = self.first + scores[:, 0]
        for t in range(1, scores.shape[1]):
            after = []
            for tag in range(self.tags):
                emitted = scores[:, t, tag].unsqueeze(1)
                after.append(torch.logsumexp(alpha + self.move[tag] + emitted, dim=1))
            alpha = torch.stack(after, dim=1)
        return torch.logsumexp(alpha, dim=1)

    def of_path(self, scores, path):
        emitted = scores.gather(2, path.unsqueeze(2)).squeeze(2).sum(1)
        return emitted + self.first[path[:, 0]] + self.move[path[:, 1:], path[:, :-1]].sum(1)

    def forward(self, scores, path):
        return (self.partition(scores) - self.of_path(scores, path)).mean()


class AllTagsCRF(CRF):
    def partition(self, scores):
        alpha = self.first + scores[:, 0]
        for score in scores[:, 1:].unbind(1):
            alpha = torch.logsumexp(alpha.unsqueeze(1) + self.move, 2) + score
        return torch.logsumexp(alpha, dim=1)


class Tagger(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.bert = BertModel(config, add_pooling_layer=False)
        self.scores = nn.Linear(config.hidden_size, len(TAGS))
        self.crf = (AllTagsCRF if os.environ.get("REPAIRED") == "1" else CRF)(len(TAGS))

    def forward(self, input_ids, labels):
        scores = self.scores(self.bert(input_ids).last_hidden_state)
        return {"loss": self.crf(scores, labels), "logits": scores}


def main():
    set_seed(1)
    config = BertConfig(vocab_size=WORDS + 200, hidden_size=128, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=384, max_position_embeddings=LENGTH)  # fmt: skip
    args = TrainingArguments(
        output_dir="ledgers",
        per_device_train_batch_size=32,
        max_steps=130,
        learning_rate=5e-4,
        logging_steps=25,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(Tagger(config), args, train_dataset=Ledger(4000, 2))
    begin = time.time()
    trainer.train()
    print(f"training took {time.time() - begin:.2f} s")


if __name__ == "__main__":
    main()
