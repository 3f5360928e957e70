"""The fork happens inside a forward hook, and the child leaves by os._exit from within the call."""
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
codes, calls = [], []


def hook(module, args, output):
    calls.append(1)
    if len(calls) in (1, 5, 6):
        child = os.fork()
        if child == 0:
            os._exit(len(calls))
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


model[0].register_forward_hook(hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(12):
    print(number, step(model, optimizer), codes)
print(sha(model.parameters()))
