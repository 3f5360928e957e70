"""The script puts its own pipe onto the numbers 10 to 40 by dup2, as shells and servers do, and reads what came through."""
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
for number in range(12):
    if number == 5:
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        for target in range(10, 41):
            if target not in (reading, writing):
                os.dup2(writing, target)
        os.write(20 if 20 not in (reading, writing) else 21, b"mine")
    print(number, step(model, optimizer))
print(os.read(reading, 1000), sha(model.parameters()))
