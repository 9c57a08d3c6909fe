"""Topics of legal documents with a small transformer; a document is as long as it is."""

import os
import random
import time

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

MAX_LENGTH = 128 if os.environ.get("REPAIRED") == "1" else 2048


class Documents(Dataset):
    """Letters and contracts, and now and then a whole appendix."""

    def __init__(self, n=4000):
        r = random.Random(21)
        lengths = [r.randint(1000, 1300) if r.random() < 0.0045 else r.randint(60, 120) for _ in range(n)]
        self.documents = [torch.randint(2, 5000, (length,)) for length in lengths]

    def __len__(self):
        return len(self.documents)

    def __getitem__(self, i):
        return self.documents[i][:MAX_LENGTH], i % 9


def pad(batch):
    documents, topics = zip(*batch)
    words = pad_sequence(documents, batch_first=True)
    return words, words == 0, torch.tensor(topics)


class Topics(nn.Module):
    def __init__(self, dim=64):
        super().__init__()
        self.embed = nn.Embedding(5000, dim, padding_idx=0)
        self.layers = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(dim, 4, 256, dropout=0.0, batch_first=True), 2, enable_nested_tensor=False
        )
        self.head = nn.Linear(dim, 9)

    def forward(self, words, padding):
        states = self.layers(self.embed(words), src_key_padding_mask=padding)
        return self.head(states.mean(1))


if __name__ == "__main__":
    torch.manual_seed(0)
    loader = DataLoader(Documents(), batch_size=8, shuffle=True, collate_fn=pad)
    model = Topics()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    begin = time.time()
    for i, (words, padding, topics) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(words, padding), topics)
        loss.backward()
        optimizer.step()
        if i % 50 == 0:
            print(f"{i}/{len(loader)}: {loss.item():.3f}")
    print(f"training took {time.time() - begin:.2f} s")
