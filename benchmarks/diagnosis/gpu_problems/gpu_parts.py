"""A language model on the GPU, and its batches, for the planted scripts."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TOKENS = 4096  # in the vocabulary


class Block(nn.Module):
    """A layer with causal attention."""

    def __init__(self, width):
        super().__init__()
        self.heads = width // 64
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.inner(self.before(x)).chunk(3, -1)
        )
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.outer(attended.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.between(x))))


def language_model(width, layers):
    """Return the model, on the GPU."""
    torch.manual_seed(0)
    blocks = [Block(width) for _ in range(layers)]
    return nn.Sequential(nn.Embedding(TOKENS, width), *blocks, nn.LayerNorm(width), nn.Linear(width, TOKENS)).cuda()


def texts(count, batch, length, **loading):
    """Return a loader of so many batches of tokens, in pinned memory."""
    data = TensorDataset(torch.randint(0, TOKENS, (64 * batch, length)))
    chosen = torch.utils.data.RandomSampler(data, num_samples=count * batch, replacement=True)
    return DataLoader(data, batch, sampler=chosen, pin_memory=True, **loading)


def loss_of(model, tokens):
    """Return the loss of predicting each next token."""
    return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1).float(), tokens[:, 1:].flatten())
