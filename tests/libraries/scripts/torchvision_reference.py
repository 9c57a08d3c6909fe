"""torchvision's reference classification in small: transforms in workers, an exponential average, `evaluate` after each epoch."""

import time

import counted
import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader
from torchvision.transforms import v2

transform = v2.Compose(
    [v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.5] * 3)]
)


class Pictures(torch.utils.data.Dataset):
    def __init__(self, count):
        self.pictures = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8)
        self.labels = torch.randint(0, 4, (count,))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return transform(self.pictures[index]), self.labels[index]


def train_one_epoch(model, criterion, optimizer, data_loader, average):
    model.train()
    steps = 0
    for image, target in data_loader:
        start = time.time()
        output = model(image)
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if steps % 2 == 0:
            average.update_parameters(model)
        steps += 1
        losses.append(loss.item())
        _rate = len(image) / (time.time() - start)
    return steps


def evaluate(model, criterion, data_loader):
    model.eval()
    batches = 0
    with torch.inference_mode():
        for image, target in data_loader:
            losses.append(criterion(model(image), target).item())
            batches += 1
    return batches


losses, steps, evaluated = [], 0, 0
network = torchvision.models.resnet18(num_classes=4)
weights_average = torch.optim.swa_utils.AveragedModel(network, use_buffers=True)
sgd = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
schedule = torch.optim.lr_scheduler.StepLR(sgd, 1)
loss_function = nn.CrossEntropyLoss(label_smoothing=0.1)
train_pictures = DataLoader(Pictures(32), 8, shuffle=True, num_workers=2)
test_pictures = DataLoader(Pictures(16), 8)
for _ in range(2 * counted.SCALE):
    steps += train_one_epoch(network, loss_function, sgd, train_pictures, weights_average)
    schedule.step()
    evaluated += evaluate(network, loss_function, test_pictures)
    evaluated += evaluate(weights_average, loss_function, test_pictures)
counted.finish(network, weights_average, train=steps, evaluation=evaluated, losses=losses)
