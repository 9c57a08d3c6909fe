"""timm's training script in small: create_model, create_optimizer_v2, a schedule, an average of the weights, validation."""

import counted
import timm
import torch
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, ModelEmaV2, NativeScaler
from torch.utils.data import DataLoader

model = timm.create_model("resnet10t", num_classes=4, pretrained=False, in_chans=3)
optimizer = create_optimizer_v2(model, opt="sgd", lr=0.05, momentum=0.9, weight_decay=1e-4)
scheduler = CosineLRScheduler(optimizer, t_initial=2, warmup_t=1)
average = ModelEmaV2(model, decay=0.9)
loss_scaler = NativeScaler(device="cpu")
criterion = LabelSmoothingCrossEntropy(0.1)
images, labels = torch.randn(48, 3, 32, 32), torch.randint(0, 4, (48,))
train_loader = DataLoader(counted.Rows(images, labels), 8, shuffle=True, drop_last=True)
test_loader = DataLoader(counted.Rows(images[:24], labels[:24]), 8)
updates = evaluated = 0
meter, losses = AverageMeter(), []
for epoch in range(2 * counted.SCALE):
    model.train()
    for x, y in train_loader:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss_scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
        average.update(model)
        updates += 1
        scheduler.step_update(updates)
        meter.update(loss.item(), len(x))
        losses.append(loss)
    for tested in (model, average.module):
        tested.eval()
        with torch.no_grad():
            for x, y in test_loader:
                losses.append(criterion(tested(x), y))
                evaluated += 1
    scheduler.step(epoch + 1)
counted.finish(model, average.module, train=updates, evaluation=evaluated, losses=losses)
