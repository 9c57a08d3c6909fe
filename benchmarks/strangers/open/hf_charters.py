"""Find names of places and people in medieval charters: every span is scored, on top of a small RoBERTa. Trainer of transformers."""

import os
import time

import torch
from torch import nn
from transformers import RobertaConfig, RobertaModel, Trainer, TrainingArguments, set_seed

REPAIRED = os.environ.get("REPAIRED") == "1"
VOCABULARY, LENGTH, LONGEST, LABELS = 900, 40, 4, 3


class Charters(torch.utils.data.Dataset):
    """Words 5 to 99 begin names of people, 100 to 199 names of places; a name goes on with words above 800."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.words = torch.randint(200, 800, (n, LENGTH), generator=g)
        self.names = torch.zeros(n, LENGTH, LONGEST, dtype=torch.long)
        for words, names in zip(self.words, self.names):
            at = 1
            while at < LENGTH - LONGEST - 1:
                size, kind = (int(torch.randint(*r, (), generator=g)) for r in ((1, LONGEST + 1), (1, LABELS)))
                words[at] = torch.randint(*((5, 100) if kind == 1 else (100, 200)), (), generator=g)
                words[at + 1 : at + size] = torch.randint(800, VOCABULARY, (size - 1,), generator=g)
                names[at, size - 1] = kind
                at += size + int(torch.randint(2, 9, (), generator=g))
        self.words[:, 0], self.words[:, -1] = 0, 2

    def __len__(self):
        return len(self.words)

    def __getitem__(self, i):
        return {"input_ids": self.words[i], "attention_mask": torch.ones(LENGTH, dtype=torch.long), "labels": self.names[i]}


class SpanTagger(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.encoder = RobertaModel(config, add_pooling_layer=False)
        self.width = nn.Embedding(LONGEST, 16)
        self.score = nn.Sequential(nn.Linear(2 * config.hidden_size + 16, 96), nn.GELU(), nn.Linear(96, LABELS))

    def spans(self, h):
        """Return the two ends of each span, and its width."""
        if REPAIRED:
            begin = torch.arange(LENGTH)[:, None].expand(-1, LONGEST)
            size = torch.arange(LONGEST).expand(LENGTH, -1)
            fits = begin + size < LENGTH
            begin, size = begin[fits], size[fits]
            widths = self.width(size).expand(len(h), -1, -1)
            return torch.cat([h[:, begin], h[:, begin + size], widths], -1).flatten(0, 1)
        spans = []
        for sentence in h:
            for begin in range(LENGTH):
                for end in range(begin, min(begin + LONGEST, LENGTH)):
                    width = self.width.weight[end - begin]
                    spans.append(torch.cat([sentence[begin], sentence[end], width]))
        return torch.stack(spans)

    def forward(self, input_ids, attention_mask, labels):
        h = self.encoder(input_ids, attention_mask).last_hidden_state
        logits = self.score(self.spans(h))
        fits = torch.arange(LENGTH)[:, None] + torch.arange(LONGEST) < LENGTH
        weight = torch.tensor([0.2, 1.0, 1.0])
        return {"loss": nn.functional.cross_entropy(logits, labels[:, fits].flatten(), weight), "logits": logits}


def main():
    set_seed(61)
    config = RobertaConfig(vocab_size=VOCABULARY, hidden_size=160, num_hidden_layers=4, num_attention_heads=4,
                           intermediate_size=640, max_position_embeddings=LENGTH + 4)
    args = TrainingArguments("charters", max_steps=150, per_device_train_batch_size=8, learning_rate=5e-4, warmup_steps=20,
                             logging_steps=40, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True)
    trainer = Trainer(SpanTagger(config), args, train_dataset=Charters(1600, 1))
    start = time.time()
    trainer.train()
    print(f"training took {time.time() - start:.2f} s")


if __name__ == "__main__":
    main()
