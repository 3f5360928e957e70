"""A wrapper tensor subclass with __torch_dispatch__ holds the inputs and logs each operation."""
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

from torch.utils._pytree import tree_map


class Logged(torch.Tensor):
    log = []

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.size(), dtype=inner.dtype, requires_grad=inner.requires_grad)

    def __init__(self, inner):
        self.inner = inner

    def __repr__(self):
        raise RuntimeError("no repr")

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        cls.log.append(str(function))
        opened = tree_map(lambda a: a.inner if isinstance(a, Logged) else a, (args, kwargs or {}))
        return function(*opened[0], **opened[1])


model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(8):
    inputs, targets = batch()
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(Logged(inputs)), targets)
    loss.backward()
    optimizer.step()
    print(number, loss.item().hex(), Logged.log)
    Logged.log.clear()
print(sha(model.parameters()))
