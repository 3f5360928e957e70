"""Daemonise: the parent leaves by os._exit after a fork and the child, in its own session, trains on and writes a file."""
import os
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
for number in range(4):
    print(number, step(model, optimizer), flush=True)
reading, writing = os.pipe()
if os.fork():
    os.close(writing)
    os.read(reading, 1)
    print("parent leaves", flush=True)
    os._exit(0)
os.setsid()
with open("daemon.txt", "w") as text:
    for number in range(8):
        print(number, step(model, optimizer), file=text)
    print(sha(model.parameters()), file=text)
os.close(writing)
os._exit(0)
