"""Modules with __eq__ that returns tensors, constant __hash__, __len__ of 0 and __bool__ that raises."""
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

class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def __eq__(self, other):
        return torch.zeros(2)

    def __hash__(self):
        return id(type(self))

    def __len__(self):
        return 0

    def __bool__(self):
        raise TypeError("truth of a module is ambiguous")

    def __iter__(self):
        raise TypeError("no iteration")

    def __contains__(self, item):
        raise TypeError("no membership")

    def forward(self, inputs):
        return self.layer(inputs)


model = Odd()
head = nn.Linear(8, 3)
optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.1)
for number in range(12):
    print(number, step(lambda inputs: head(model(inputs)), optimizer))
print(len(model), sha(model.parameters()))
