"""The script deletes everything named runs in its current directory at step 5 and 12, as a fresh start does, and makes its own."""
import os
import shutil
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
for number in range(20):
    print(number, step(model, optimizer))
    if number in (5, 12):
        shutil.rmtree("runs", ignore_errors=True)
        print(os.path.exists("runs"))
shutil.rmtree("runs", ignore_errors=True)
with open("runs", "w") as text:
    text.write("a file of mine\n")
print(open("runs").read(), sha(model.parameters()))
