"""The user replaces nn.Module.__call__ by a counting function for some steps and puts the old one back."""
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

model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
original, names = nn.Module.__call__, []


def counting(self, *args, **kwargs):
    names.append(type(self).__name__)
    return original(self, *args, **kwargs)


for number in range(12):
    if number in (2, 7):
        nn.Module.__call__ = counting
    if number in (4, 10):
        nn.Module.__call__ = original
    print(number, step(model, optimizer), names, nn.Module.__call__ is original)
    names.clear()
print(sha(model.parameters()))
