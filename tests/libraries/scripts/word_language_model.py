"""PyTorch's word language model: an LSTM over slices of one long tensor, no DataLoader, parameters updated by hand."""

import counted
import torch
from torch import nn

BPTT = 12
tokens = torch.randint(0, 50, (8, 200)).t().contiguous()
held_out = torch.randint(0, 50, (8, 60)).t().contiguous()


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.drop = nn.Embedding(50, 24), nn.Dropout(0.2)
        self.rnn, self.decoder = nn.LSTM(24, 24, 2, dropout=0.2), nn.Linear(24, 50)

    def forward(self, data, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(data)), hidden)
        return torch.log_softmax(self.decoder(self.drop(output)).view(-1, 50), 1), hidden


def get_batch(source, i):
    length = min(BPTT, len(source) - 1 - i)
    return source[i : i + length], source[i + 1 : i + 1 + length].view(-1)


model, criterion, lr = RNNModel(), nn.NLLLoss(), 5.0
losses, steps, evaluated = [], 0, 0
for _ in range(2 * counted.SCALE):
    model.train()
    hidden = (torch.zeros(2, 8, 24), torch.zeros(2, 8, 24))
    for i in range(0, len(tokens) - 1, BPTT):
        data, targets = get_batch(tokens, i)
        model.zero_grad()
        hidden = tuple(h.detach() for h in hidden)
        output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
        steps += 1
        losses.append(loss.item())
    model.eval()
    hidden = (torch.zeros(2, 8, 24), torch.zeros(2, 8, 24))
    with torch.no_grad():
        for i in range(0, len(held_out) - 1, BPTT):
            data, targets = get_batch(held_out, i)
            output, hidden = model(data, hidden)
            losses.append(criterion(output, targets).item())
            evaluated += 1
counted.finish(model, train=steps, evaluation=evaluated, losses=losses, forwards=steps + evaluated)
