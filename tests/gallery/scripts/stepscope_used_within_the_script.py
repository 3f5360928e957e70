"""The script profiles two of its three loops by Stepscope itself, one by steps that it tells."""
import hashlib
import os

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


import stepscope

model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
outside = os.path.join("..", "own")
with stepscope.profile(model, steps="optimizer", out=outside, record="none") as scope:
    for number in range(6):
        print(number, step(model, optimizer))
print(scope.run.steps.height, scope.run.status)
for number in range(4):
    print(number, step(model, optimizer))
with stepscope.profile(model, out=outside, record="all") as scope:
    for number in range(5):
        print(number, step(model, optimizer))
        scope.step()
print(scope.run.steps.height, scope.run.status, sha(model.parameters()))
