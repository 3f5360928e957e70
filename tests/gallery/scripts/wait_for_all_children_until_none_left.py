"""os.wait in a loop until ChildProcessError, as process managers do, must see only the script's own children."""
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
for number in range(10):
    print(number, step(model, optimizer), flush=True)
    if number in (0, 4, 7):
        for code in (1, 2):
            if os.fork() == 0:
                os._exit(code)
        codes = []
        while True:
            try:
                codes.append(os.waitstatus_to_exitcode(os.wait()[1]))
            except ChildProcessError:
                break
        print("children", sorted(codes), flush=True)
print(sha(model.parameters()))
