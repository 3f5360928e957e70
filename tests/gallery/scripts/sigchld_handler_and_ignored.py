"""A SIGCHLD handler counts the script's children, later SIGCHLD is ignored, so that wait finds nothing."""
import os
import signal
import subprocess
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
seen = []
signal.signal(signal.SIGCHLD, lambda number, frame: seen.append(number == signal.SIGCHLD))
for number in range(12):
    if number in (1, 4):
        print(subprocess.run(["true"]).returncode)
    if number == 8:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        child = os.fork()
        if child == 0:
            os._exit(9)
        try:
            os.waitpid(child, 0)
        except ChildProcessError:
            print("no child to wait for")
    print(number, step(model, optimizer), len(seen))
print(sha(model.parameters()))
