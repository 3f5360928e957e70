"""The user wraps SGD.step, Optimizer.zero_grad and torch.Tensor.backward at class level in mid-run, and never restores one."""
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
log = []


def wrap(owner, name):
    original = getattr(owner, name)

    def wrapped(self, *args, **kwargs):
        log.append(name)
        return original(self, *args, **kwargs)

    setattr(owner, name, wrapped)
    return lambda: setattr(owner, name, original)


undo = []
for number in range(12):
    if number == 1:
        undo = [wrap(torch.optim.SGD, "step"), wrap(torch.Tensor, "backward")]
        wrap(torch.optim.Optimizer, "zero_grad")
    if number == 5:
        [back() for back in undo]
    print(number, step(model, optimizer), log)
    log.clear()
print(torch.optim.SGD.step.__name__, torch.Tensor.backward.__name__, sha(model.parameters()))
