"""freezegun style: time.time, perf_counter, monotonic, time_ns and sleep are replaced, print and open are wrapped, during the steps."""
import builtins
import itertools
import os
import time
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
print(step(model, optimizer))
ticks, opened = itertools.count(), []
original_open, original_print = builtins.open, builtins.print
kept = {name: getattr(time, name) for name in ("time", "perf_counter", "monotonic", "time_ns", "monotonic_ns", "perf_counter_ns", "sleep")}


def refuse(*args, **kwargs):
    raise OSError("no files in this part")


for name in kept:
    setattr(time, name, lambda *_: 1_000_000 - next(ticks))
builtins.open, os.getpid = refuse, lambda: 1
for number in range(9):
    print(number, step(model, optimizer))
builtins.open = original_open
for name, value in kept.items():
    setattr(time, name, value)
print(sha(model.parameters()))
