"""Gradient accumulation with an odd last batch, flush at the end."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(1070, 3, 32, 32)
y = torch.randint(0, 10, (1070,))
loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
ACCUM = 4


def block(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU())


model = nn.Sequential(
    block(3, 32),
    block(32, 32),
    nn.MaxPool2d(2),
    block(32, 64),
    block(64, 64),
    nn.MaxPool2d(2),
    block(64, 256),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(256, 10),
)
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
crit = nn.CrossEntropyLoss()
for epoch in range(2):
    model.train()
    running = 0.0
    opt.zero_grad()
    for i, (a, b) in enumerate(loader):
        loss = crit(model(a), b) / ACCUM
        loss.backward()
        running += loss.item() * ACCUM
        if (i + 1) % ACCUM == 0 or i + 1 == len(loader):
            opt.step()
            opt.zero_grad()
    print(f"epoch {epoch}: {running / len(loader):.3f}")
