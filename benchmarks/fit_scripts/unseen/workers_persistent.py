"""Three persistent workers for training, one for validation; arrays made in the worker."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Waves(Dataset):
    def __init__(self, n, length=16000):
        self.n, self.length = n, length

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        rng = np.random.default_rng(i)
        t = np.linspace(0, 1, self.length, dtype=np.float32)
        label = i % 10
        wave = np.sin(2 * np.pi * (200 + 50 * label) * t) + 0.1 * rng.standard_normal(self.length).astype(np.float32)
        return torch.from_numpy(wave.astype(np.float32))[None], label


class M5(nn.Module):
    def __init__(self, c=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(1, c, 80, stride=8),
            nn.BatchNorm1d(c),
            nn.ReLU(),
            nn.MaxPool1d(4),
            nn.Conv1d(c, c, 3),
            nn.BatchNorm1d(c),
            nn.ReLU(),
            nn.MaxPool1d(4),
            nn.Conv1d(c, 2 * c, 3),
            nn.BatchNorm1d(2 * c),
            nn.ReLU(),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(2 * c, 10),
        )

    def forward(self, x):
        return self.net(x)


def main():
    train = DataLoader(Waves(640), batch_size=64, shuffle=True, num_workers=3, persistent_workers=True)
    val = DataLoader(Waves(256), batch_size=128, num_workers=1)
    model = M5()
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    for epoch in range(2):
        model.train()
        for x, y in train:
            opt.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            opt.step()
        model.eval()
        with torch.inference_mode():
            print(epoch, np.mean([(model(x).argmax(1) == y).float().mean().item() for x, y in val]))


if __name__ == "__main__":
    main()
