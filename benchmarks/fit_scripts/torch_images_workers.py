"""Classify made-up images with a small residual network: two workers, cosine schedule, a checkpoint every epoch."""

import os

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Shapes(Dataset):
    def __init__(self, length, size=64):
        self.length = length
        self.size = size

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        label = index % 10
        image = torch.randn(3, self.size, self.size, generator=generator) * 0.3
        image[:, label * 6 : label * 6 + 6] += 1.0
        return image, label


class Block(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.shortcut = nn.Sequential()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.shortcut(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 3, 1, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU())
        self.layers = nn.Sequential(Block(32, 32, 1), Block(32, 64, 2), Block(64, 128, 2), Block(128, 256, 2))
        self.head = nn.Linear(256, 10)

    def forward(self, x):
        x = self.layers(self.stem(x))
        return self.head(x.mean(dim=(2, 3)))


def evaluate(model, loader):
    model.eval()
    correct = count = 0
    with torch.no_grad():
        for images, labels in loader:
            correct += (model(images).argmax(1) == labels).sum().item()
            count += len(labels)
    return correct / count


def main():
    torch.manual_seed(0)
    train = DataLoader(Shapes(400), batch_size=32, shuffle=True, num_workers=2, drop_last=True)
    valid = DataLoader(Shapes(160), batch_size=80, num_workers=2)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2)
    os.makedirs("checkpoints", exist_ok=True)
    for epoch in range(2):
        model.train()
        for step, (images, labels) in enumerate(train):
            loss = F.cross_entropy(model(images), labels, label_smoothing=0.1)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            if step % 5 == 0:
                print(f"{epoch} {step} {loss.item():.3f}", flush=True)
        scheduler.step()
        accuracy = evaluate(model, valid)
        print(f"epoch {epoch}: accuracy {accuracy:.3f}")
        torch.save(
            {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict(), "accuracy": accuracy},
            f"checkpoints/epoch{epoch}.pt",
        )


if __name__ == "__main__":
    main()
