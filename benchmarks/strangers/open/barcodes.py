"""Read worn barcodes off parcels: a scan line through the picture goes into a small CRNN, CTC loss.

The data never ends; every optimizer step sees two micro-batches.
"""
import time
import itertools
import torch
import torch.nn as nn

DIGITS = 10
CODES = torch.tensor([[3,2,1,1],[2,2,2,1],[2,1,2,2],[1,4,1,1],[1,1,3,2],[1,2,3,1],[1,1,1,4],[1,3,1,2],[1,2,1,3],[3,1,1,2]])
LEN, WIDTH = 8, 224          # digits on a label, pixels of a scan line
gen = torch.Generator().manual_seed(8)


def draw(digits):
    # each digit has four stripes: white, black, white, black, 7 modules altogether, 4 pixels a module
    n = digits.shape[0]
    widths = CODES[digits].flatten(1) * 4
    edges = widths.cumsum(1)
    pixel = torch.arange(WIDTH).expand(n, WIDTH).contiguous()
    stripe = torch.searchsorted(edges.contiguous(), pixel, right=True)
    return (stripe % 2).float()


def labels(batch):
    while True:
        digits = torch.randint(0, DIGITS, (batch, LEN), generator=gen)
        line = draw(digits)
        height = torch.rand(batch, 1, 12, 1, generator=gen) * 0.4 + 0.6
        picture = line[:, None, None, :] * height
        picture = picture + 0.3 * torch.randn(batch, 1, 12, WIDTH, generator=gen)
        yield picture, digits + 1


class CRNN(nn.Module):
    def __init__(self, ch=32, hidden=96):
        super().__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(1, ch, (5, 5), padding=(2, 2)), nn.BatchNorm2d(ch), nn.ReLU(), nn.MaxPool2d((3, 2)),
            nn.Conv2d(ch, ch * 2, (3, 5), padding=(1, 2)), nn.BatchNorm2d(ch * 2), nn.ReLU(), nn.MaxPool2d((2, 2)),
            nn.Conv2d(ch * 2, ch * 2, (2, 5), padding=(0, 2)), nn.BatchNorm2d(ch * 2), nn.ReLU(),
        )
        self.rnn = nn.GRU(ch * 2, hidden, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(hidden * 2, DIGITS + 1)

    def forward(self, x):
        x = self.cnn(x)
        x = x.mean(2).transpose(1, 2)
        x, _ = self.rnn(x)
        return self.fc(x).log_softmax(-1)


torch.manual_seed(8)
model = CRNN()
ctc = nn.CTCLoss(zero_infinity=True)
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
source = labels(24)
STEPS, ACCUMULATE = 80, 2

t0 = time.time()
smooth = None
for step in itertools.count(1):
    opt.zero_grad()
    total = 0.0
    for _ in range(ACCUMULATE):
        picture, digits = next(source)
        out = model(picture)
        lengths = torch.full((len(out),), out.shape[1], dtype=torch.long)
        loss = ctc(out.transpose(0, 1), digits, lengths, torch.full((len(out),), LEN, dtype=torch.long)) / ACCUMULATE
        loss.backward()
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    opt.step()
    smooth = total if smooth is None else 0.95 * smooth + 0.05 * total
    if step % 40 == 0:
        print(f"{step:5d}  ctc {smooth:.3f}", flush=True)
    if step == STEPS:
        break
print(f"training took {time.time() - t0:.2f} s")
