"""The script signals its whole process group; only its own handler may notice and everything else must survive."""
import os
import signal
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
if os.getpgid(0) != os.getpid():
    os.setpgid(0, 0)
seen = []
signal.signal(signal.SIGTERM, lambda *_: seen.append("TERM"))
signal.signal(signal.SIGUSR1, lambda *_: seen.append("USR1"))
for number in range(8):
    print(number, step(model, optimizer), seen)
    os.killpg(0, signal.SIGUSR1 if number % 2 else signal.SIGTERM)
print(sha(model.parameters()))
