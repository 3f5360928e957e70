"""fd 1 is redirected into a file by dup2 for some steps and restored; sys.stdout is redirected as well."""
import contextlib
import io
import os
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

model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(10):
    if number == 3:
        sys.stdout.flush()
        saved = os.dup(1)
        file = os.open("captured.txt", os.O_CREAT | os.O_WRONLY)
        os.dup2(file, 1)
    if number == 7:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)
    print(number, step(model, optimizer))
target = io.StringIO()
with contextlib.redirect_stdout(target), contextlib.redirect_stderr(target):
    print("captured")
print(repr(target.getvalue()), repr(open("captured.txt").read()[:1]), sha(model.parameters()))
