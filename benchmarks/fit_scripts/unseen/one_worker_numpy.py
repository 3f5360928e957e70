"""One worker; whole data set as a numpy array in the Dataset; argparse; a loader per epoch."""

import argparse

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

ap = argparse.ArgumentParser()
ap.add_argument("--epochs", type=int, default=2)
ap.add_argument("--batch-size", type=int, default=100)
ap.add_argument("--workers", type=int, default=1)
args = ap.parse_args()


class Arr(Dataset):
    def __init__(self, n):
        self.x = np.random.default_rng(0).integers(0, 255, (n, 64, 64, 3), dtype=np.uint8)
        self.y = np.arange(n) % 12

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        im = self.x[i].astype(np.float32) / 255.0
        if i % 2:
            im = im[:, ::-1].copy()
        return torch.from_numpy(im).permute(2, 0, 1), self.y[i]


if __name__ == "__main__":
    ds = Arr(4000)
    net = nn.Sequential(
        nn.Conv2d(3, 24, 5, 2),
        nn.ReLU(),
        nn.Conv2d(24, 48, 3, 2),
        nn.ReLU(),
        nn.Conv2d(48, 64, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(1024, 12),
    )
    opt = torch.optim.Adam(net.parameters())
    for ep in range(args.epochs):
        loader = DataLoader(
            torch.utils.data.Subset(ds, range(1500)), args.batch_size, shuffle=True, num_workers=args.workers
        )
        correct = 0
        for x, y in loader:
            out = net(x)
            loss = nn.functional.cross_entropy(out, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            correct += (out.argmax(1) == y).sum().item()
        print(ep, correct / 1500)
