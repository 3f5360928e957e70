"""All of a data set in one tensor; normalised in place and not."""

import torch
from torch import nn

torch.manual_seed(0)
data = torch.randint(0, 256, (30000, 3, 32, 32), dtype=torch.uint8)
data = data.float() / 255.0
data = (data - data.mean(dim=(0, 2, 3), keepdim=True)) / data.std(dim=(0, 2, 3), keepdim=True)
target = torch.randint(0, 100, (30000,))
m = nn.Sequential(nn.Flatten(), nn.Linear(3072, 256), nn.ReLU(), nn.Linear(256, 100))
o = torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
for epoch in range(1):
    for b in torch.randperm(len(data)).split(512):
        o.zero_grad()
        nn.functional.cross_entropy(m(data[b]), target[b]).backward()
        o.step()
