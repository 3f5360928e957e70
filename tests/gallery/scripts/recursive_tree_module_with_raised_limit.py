"""A module calls itself along a tree, four hundred deep, with sys.setrecursionlimit raised by the script."""
import sys
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


def step(model, optimizer, size=16):
    inputs, targets = batch(size)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.item().hex()

sys.setrecursionlimit(6000)


class Tree(nn.Module):
    def __init__(self):
        super().__init__()
        self.join, self.head = nn.Linear(16, 8), nn.Linear(8, 3)

    def forward(self, inputs, depth):
        if depth == 0:
            return inputs
        return self.join(torch.cat([self(inputs, depth - 1), inputs], 1)).tanh()


model = Tree()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number, depth in enumerate((1, 2, 30, 400, 3, 400, 5, 1)):
    print(number, step(lambda inputs: model.head(model(inputs, depth)), optimizer))
print(sys.getrecursionlimit(), sha(model.parameters()))
