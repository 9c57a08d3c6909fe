"""A collate function that pads in pure Python."""

import torch
from bench import Run
from torch import nn
from torch.utils.data import DataLoader

run = Run(steps=150, share=0.45, width=160, batch=24)
VOCABULARY = 500


def padded(sentence, length):
    return [sentence[i] if i < len(sentence) else 0 for i in range(length)]  # GUILTY


def collate(samples):
    length = 32
    with run.spends("collating"):
        for _ in range(passes):
            rows = [padded(tokens, length) for tokens, _ in samples]
        rows = [padded(tokens, length) for tokens, _ in samples]
    return torch.tensor(rows), torch.tensor([label for _, label in samples])


sentences = [[(7 * i + j) % VOCABULARY for j in range(8 + i % 24)] for i in range(400)]
corpus = [(sentences[i % 400], i % 3) for i in range(run.steps * run.batch)]
passes = run.rounds(lambda: [padded(sentences[i], 32) for i in range(run.batch)])
embedding = nn.Embedding(VOCABULARY, run.width)
encoder = nn.GRU(run.width, run.width, batch_first=True)
classifier = nn.Linear(run.width, 3)
model = nn.ModuleList([embedding, encoder, classifier])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def step(tokens, labels):
    optimizer.zero_grad()
    _, state = encoder(embedding(tokens))
    nn.functional.cross_entropy(classifier(state[0]), labels).backward()
    optimizer.step()


with run.training():
    for tokens, labels in DataLoader(corpus, batch_size=run.batch, collate_fn=collate):  # LOOP
        step(tokens, labels)
run.close()
