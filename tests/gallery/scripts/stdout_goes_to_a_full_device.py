"""stdout is /dev/full: text cannot be written when the buffer is flushed, and again when the interpreter ends."""
import hashlib
import os
import sys

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
os.dup2(os.open("/dev/full", os.O_WRONLY), 1)
with open("log.txt", "w") as log:
    for number in range(8):
        text = step(model, optimizer)
        try:
            print(number, text, flush=number % 3 == 2)
        except OSError as error:
            text = error.strerror
        print(number, text, file=log)
    print(sha(model.parameters()), file=log)
print("this stays in the buffer")
