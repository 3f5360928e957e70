"""The classic leak: total_loss += loss keeps each graph."""

import torch
from torch import nn

torch.manual_seed(0)
net = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(16, 16, 3, padding=1),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(16 * 28 * 28, 10),
)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
images = torch.rand(2048, 1, 28, 28)
labels = torch.randint(0, 10, (2048,))
total_loss = 0
losses = []
for step in range(120):
    i = (step * 16) % 2048
    opt.zero_grad()
    out = net(images[i : i + 16])
    loss = nn.functional.cross_entropy(out, labels[i : i + 16])
    loss.backward()
    opt.step()
    total_loss += loss
    losses.append((loss, out))
print(total_loss / 120)
