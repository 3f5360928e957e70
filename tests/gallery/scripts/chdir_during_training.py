"""The current directory changes at each third step."""
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

for name in ("one", "two"):
    os.mkdir(name)
home = os.getcwd()
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(40):
    if number % 3 == 2:
        os.chdir(os.path.join(home, ("one", "two")[number % 2]))
    with open("log.txt", "a") as text:
        print(number, step(model, optimizer), file=text)
print(os.path.basename(os.getcwd()), sha(model.parameters()))
