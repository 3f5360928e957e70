"""A child without close_fds sees only the standard descriptors and the script's own inheritable one."""
import os
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
reading, writing = os.pipe()
os.set_inheritable(writing, True)
code = "import os, stat; print([n for n in map(int, os.listdir('/proc/self/fd')) if n > 2 and os.path.exists(f'/proc/self/fd/{n}') and 'pipe' not in os.readlink(f'/proc/self/fd/{n}')])"
for number in range(8):
    print(number, step(model, optimizer), flush=True)
    if number in (0, 4, 5):
        print(subprocess.run([sys.executable, "-c", code], close_fds=False, capture_output=True, text=True).stdout.strip())
print(sha(model.parameters()))
