"""Segment discs with a U-Net: four persistent workers, a running average of the weights, validation by overlap."""

import copy

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset


class Discs(Dataset):
    def __init__(self, n, size=96, seed=0):
        self.n, self.size, self.seed = n, size, seed

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        rng = np.random.default_rng(self.seed + i)
        yy, xx = np.mgrid[: self.size, : self.size]
        cy, cx, r = rng.uniform(20, 76, 3)
        mask = ((yy - cy) ** 2 + (xx - cx) ** 2 < (r / 3) ** 2).astype(np.float32)
        image = mask + rng.normal(0, 0.5, mask.shape)
        return torch.from_numpy(image.astype(np.float32))[None], torch.from_numpy(mask)[None]


def double(i, o):
    return nn.Sequential(
        nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(4, o), nn.SiLU(),
        nn.Conv2d(o, o, 3, padding=1), nn.GroupNorm(4, o), nn.SiLU(),
    )  # fmt: skip


class UNet(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.d1, self.d2, self.d3 = double(1, width), double(width, 2 * width), double(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.u2 = double(4 * width, 2 * width)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.u1 = double(2 * width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool2d(a, 2))
        c = self.d3(F.max_pool2d(b, 2))
        x = self.u2(torch.cat([self.up2(c), b], 1))
        x = self.u1(torch.cat([self.up1(x), a], 1))
        return self.out(x)


def dice_loss(logits, target):
    p = torch.sigmoid(logits)
    overlap = (p * target).sum((1, 2, 3))
    return 1 - (2 * overlap + 1) / (p.sum((1, 2, 3)) + target.sum((1, 2, 3)) + 1)


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net = UNet().to(device)
    ema = copy.deepcopy(net).eval().requires_grad_(False)
    train = DataLoader(Discs(96), 12, shuffle=True, num_workers=4, persistent_workers=True)
    valid = DataLoader(Discs(48, seed=10_000), 24, num_workers=4, persistent_workers=True)
    opt = torch.optim.AdamW(net.parameters(), 1e-3)
    best = 0.0
    for epoch in range(2):
        net.train()
        for x, y in train:
            x, y = x.to(device), y.to(device)
            logits = net(x)
            loss = F.binary_cross_entropy_with_logits(logits, y) + dice_loss(logits, y).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            with torch.no_grad():
                for p, q in zip(ema.parameters(), net.parameters(), strict=True):
                    p.lerp_(q, 0.05)
        scores = []
        with torch.no_grad():
            for x, y in valid:
                scores.append(1 - dice_loss(ema(x.to(device)), y.to(device)))
        score = torch.cat(scores).mean().item()
        print(f"epoch {epoch} loss {loss.item():.3f} dice {score:.3f}")
        if score > best:
            best = score
        torch.save({"net": net.state_dict(), "ema": ema.state_dict(), "opt": opt.state_dict()}, "last.pt")


if __name__ == "__main__":
    main()
