"""Encoder each batch, head each second, embedding each third: a step is a batch in which an update was made."""
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

parts = [nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)]
optimizers = [torch.optim.SGD(part.parameters(), lr=0.05) for part in parts]
for number in range(24):
    inputs, targets = batch()
    loss = nn.functional.cross_entropy(parts[2](parts[1](parts[0](inputs).relu()).relu()), targets)
    loss.backward()
    for period, optimizer in zip((1, 2, 3), optimizers):
        if number % period == 0:
            optimizer.step()
            optimizer.zero_grad()
print(sha(p for part in parts for p in part.parameters()))
