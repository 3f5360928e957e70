"""An atexit handler raises and another calls os._exit(0) at the very end, so nothing after it runs."""
import atexit
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


def leave():
    sys.stdout.flush()
    os._exit(12)


def fail():
    print("failing")
    raise ValueError("in atexit")


if __name__ == "__main__":
    atexit.register(print, "first registered")
    atexit.register(fail)
    for number in range(6):
        print(number, step(model, optimizer))
    print(sha(model.parameters()))
