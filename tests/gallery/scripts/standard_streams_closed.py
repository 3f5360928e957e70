"""fd 0 and fd 2 are closed in mid-run and reused by files of the script; stdout is closed near the end."""
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
    if number == 2:
        os.close(2)
        log = os.open("second.txt", os.O_CREAT | os.O_RDWR)
    if number == 4:
        os.close(0)
        zero = os.open("zero.txt", os.O_CREAT | os.O_RDWR)
        os.write(zero, b"mine")
    print(number, step(model, optimizer))
print(log, zero, sha(model.parameters()))
os.write(log, b"also mine")
sys.stdout.flush()
os.close(1)
one = os.open("one.txt", os.O_CREAT | os.O_RDWR)
print("this goes into one.txt")
step(model, optimizer)
