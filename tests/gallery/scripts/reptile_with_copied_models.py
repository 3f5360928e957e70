"""Reptile: three updates of a copy by an optimizer of its own, then the model moves towards it by hand."""
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

import copy
model = net()
for number in range(5):
    fast = copy.deepcopy(model)
    inner = torch.optim.SGD(fast.parameters(), 0.1)
    for _ in range(3):
        x, y = batch()
        inner.zero_grad()
        nn.functional.cross_entropy(fast(x), y).backward()
        inner.step()
    with torch.no_grad():
        for p, q in zip(model.parameters(), fast.parameters()):
            p += 0.5 * (q - p)
print(sha(model.parameters()))
