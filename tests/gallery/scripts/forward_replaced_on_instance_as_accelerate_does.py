"""accelerate style: model.forward is replaced on the instance by a wrapped function, later unwrapped, with signature checks."""
import functools
import inspect
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

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = net()

    def forward(self, inputs, *, scale: float = 1.0):
        return self.body(inputs) * scale


model = Net()
original = model.forward


@functools.wraps(original)
def wrapped(*args, **kwargs):
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=True):
        return original(*args, **kwargs).float()


optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(12):
    if number == 4:
        model.forward = wrapped
    if number == 9:
        del model.forward
    print(number, step(model, optimizer), inspect.signature(model.forward), "forward" in vars(model))
print(inspect.signature(model.forward.__func__), sha(model.parameters()))
