"""Nothing wrong: a character model with warm-up, clipping, a log line now and then and a checkpoint at the end."""

import logging
import tempfile

import torch
from bench import Run
from torch import nn

run = Run(steps=150, width=96, length=48, batch=8)
HEADS = 4
log = logging.getLogger("charlm")
logging.basicConfig(level=logging.INFO)


class CharModel(nn.Module):
    def __init__(self, vocabulary, width, length):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(width, HEADS, 4 * width, batch_first=True, dropout=0.0)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.out(self.blocks(self.embed(tokens) + self.position, mask=mask, is_causal=True))


class Text(torch.utils.data.Dataset):
    def __init__(self, length, count):
        self.text, self.length, self.count = torch.randint(0, 64, (20_000,)), length, count

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        start = (number * 37) % (len(self.text) - self.length - 1)
        chunk = self.text[start : start + self.length + 1]
        return chunk[:-1], chunk[1:]


def train(model, loader):
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 50))
    for number, (x, y) in enumerate(loader):  # LOOP
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if number % 40 == 0:
            log.info("step %d loss %.3f", number, loss.item())


net = CharModel(64, run.width // HEADS * HEADS, run.length)
batches = torch.utils.data.DataLoader(Text(run.length, run.steps * run.batch), run.batch, shuffle=True)
with run.training():
    train(net, batches)
with tempfile.TemporaryFile() as file:
    torch.save(net.state_dict(), file)
run.close()
