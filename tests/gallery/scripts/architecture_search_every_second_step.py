"""DARTS of first order: the architecture every second step."""
import copy
import hashlib

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


def sha(tensors):
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def net():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def batch(size=16):
    inputs = torch.randn(size, 8)
    return inputs, inputs[:, :3].argmax(1)


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.ops = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        self.head = nn.Linear(8, 3)
        self.alpha = nn.Parameter(torch.zeros(3))
    def forward(self, x):
        weights = self.alpha.softmax(0)
        return self.head(sum(w * op(x).relu() for w, op in zip(weights, self.ops)))
    def weights(self):
        return [*self.ops.parameters(), *self.head.parameters()]
model = Cell()
ow = torch.optim.SGD(model.weights(), 0.1, momentum=0.9)
oa = torch.optim.Adam([model.alpha], 1e-2)
for number in range(8):
    if number % 2 == 0:
        x, y = batch()
        oa.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        oa.step()
    x, y = batch()
    ow.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    ow.step()
print(sha(model.parameters()))
