"""The user's TorchDispatchMode and TorchFunctionMode around steps count every operation, also any that is not theirs."""
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

import collections
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class Dispatch(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = collections.Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen[str(function)] += 1
        return function(*args, **(kwargs or {}))


class Function(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = collections.Counter()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen[getattr(function, "__name__", "?")] += 1
        return function(*args, **(kwargs or {}))


model = net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for number in range(12):
    mode = [Dispatch, Function][number % 2]()
    if number < 8:
        with mode:
            loss = step(model, optimizer)
    else:
        loss = step(model, optimizer)
    print(number, loss, sorted(mode.seen.items()))
print(sha(model.parameters()))
