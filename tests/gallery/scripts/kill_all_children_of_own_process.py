"""The script kills and reaps every child that /proc names, as cleanup code does, and counts them."""
import os
import signal
import subprocess
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
    print(number, step(model, optimizer))
    if number == 5:
        mine = subprocess.Popen(["sleep", "30"])
        with open(f"/proc/self/task/{os.getpid()}/children") as text:
            children = [int(word) for word in text.read().split()]
        for child in children:
            os.kill(child, signal.SIGKILL)
        print("killed", mine.pid in children, mine.wait())
print(sha(model.parameters()))
