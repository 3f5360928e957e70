"""Fine-tune a MobileNetV3 of timm on FakeData of torchvision with four workers; best and last checkpoint."""

import timm
import torch
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, accuracy
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import FakeData


def main():
    model = timm.create_model("mobilenetv3_small_100", pretrained=False, num_classes=20)
    transform = transforms.Compose([transforms.Resize(128), transforms.ToTensor(), transforms.Normalize(0.5, 0.25)])
    train_set = FakeData(192, (3, 160, 160), 20, transform)
    valid_set = FakeData(96, (3, 160, 160), 20, transform, random_offset=1000)
    train = DataLoader(train_set, 32, shuffle=True, num_workers=4, drop_last=True)
    valid = DataLoader(valid_set, 48, num_workers=4)
    optimizer = create_optimizer_v2(model, opt="rmsprop", lr=1e-3, weight_decay=1e-5)
    scheduler = CosineLRScheduler(optimizer, t_initial=2, warmup_t=1, warmup_lr_init=1e-5)
    criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    best = -1.0
    for epoch in range(2):
        model.train()
        meter = AverageMeter()
        for x, y in train:
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            meter.update(loss.item(), x.size(0))
        scheduler.step(epoch + 1)
        model.eval()
        top1 = AverageMeter()
        with torch.no_grad():
            for x, y in valid:
                (acc,) = accuracy(model(x), y, topk=(1,))
                top1.update(acc.item(), x.size(0))
        print(f"epoch {epoch}: loss {meter.avg:.3f}, top-1 {top1.avg:.1f}")
        state = {"epoch": epoch, "state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, "last.pth.tar")
        if top1.avg > best:
            best = top1.avg
            torch.save(state, "best.pth.tar")


if __name__ == "__main__":
    main()
