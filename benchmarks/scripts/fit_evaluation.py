"""Evaluates in batches of 1024 what it trains in batches of 32. A script for `benchmarks.fit_limit`."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
    nn.Conv2d(32, 64, 3, padding=1, stride=2), nn.BatchNorm2d(64), nn.ReLU(),
    nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
)  # fmt: skip
optimizer = torch.optim.Adam(model.parameters())
images = TensorDataset(torch.randn(2080, 3, 32, 32), torch.randint(0, 10, (2080,)))
best = -1
for epoch in range(2):
    model.train()
    for number, (x, y) in enumerate(DataLoader(images, batch_size=32, shuffle=True)):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if number == 5:
            break
    model.eval()
    right = 0
    with torch.no_grad():
        for x, y in DataLoader(images, batch_size=1024):
            right += (model(x).argmax(1) == y).sum().item()
    if right > best:
        best = right
        torch.save(model.state_dict(), "best.pt")
    print(epoch, loss.item(), right)
