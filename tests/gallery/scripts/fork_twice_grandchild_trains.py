"""A grandchild trains; buffered text printed before the fork is written by each process once, as bare."""
# runner: stdout=pipe
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
for number in range(8):
    print(number, step(model, optimizer), flush=True)
    if number == 5:
        print("buffered before the fork")
        child = os.fork()
        if child == 0:
            grandchild = os.fork()
            if grandchild == 0:
                print("grandchild", [step(model, optimizer) for _ in range(6)])
                sys.exit(4)
            code = os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1])
            print("child saw", code)
            sys.exit(code + 1)
        print("parent saw", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
print(sha(model.parameters()))
