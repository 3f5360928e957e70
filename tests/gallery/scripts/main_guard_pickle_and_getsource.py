"""Classes of __main__ are pickled by name, sources are read by inspect, type hints are resolved, doctest runs on the main module."""
import doctest
import inspect
import pickle
import sys
import typing
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

class Settings:
    """Holds a rate.

    >>> Settings(2).rate
    2
    """

    rate: "int"

    def __init__(self, rate):
        self.rate = rate


def main():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(8):
        print(number, step(model, optimizer))
        if number in (0, 4):
            print(pickle.loads(pickle.dumps(Settings(3))).rate, pickle.dumps(Settings)[:40])
    print(inspect.getsource(Settings.__init__), inspect.getsource(step).count("\n"), typing.get_type_hints(Settings))
    print(doctest.testmod(), sys.modules[Settings.__module__].Settings is Settings, sha(model.parameters()))


if __name__ == "__main__":
    main()
