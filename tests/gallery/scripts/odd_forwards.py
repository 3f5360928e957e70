"""forward as a property, a lambda, a partial, a static method, another module, an async function; calls by map, partial and operator."""
import asyncio
import functools
import operator
from typing import Generic, TypeVar
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


Kind = TypeVar("Kind")


class ByProperty(nn.Module):
    @property
    def forward(self):
        return lambda inputs: inputs * 2


class Static(nn.Module):
    @staticmethod
    def forward(inputs):
        return inputs + 1


class Waits(nn.Module, Generic[Kind]):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    async def forward(self, inputs):
        await asyncio.sleep(0)
        return self.layer(inputs)


class Named:
    kind = "named"


class Runs(nn.Linear, Named):
    pass


class Delegates(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.forward = self.layer.forward


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([ByProperty(), Static(), Delegates(), Runs(16, 3)])
        self.waits, self.first = Waits[int](), nn.Linear(8, 16)
        self.lambdas = nn.Module()
        self.lambdas.forward = lambda inputs: inputs.tanh()
        self.partial = nn.Module()
        self.partial.forward = functools.partial(nn.functional.leaky_relu, negative_slope=0.3)

    async def ahead(self, inputs):
        return await self.waits(inputs)

    def forward(self, inputs):
        hidden = next(map(self.first, [inputs]))
        hidden = functools.partial(self.lambdas, hidden)()
        hidden = operator.methodcaller("__call__", hidden)(self.partial)
        hidden = asyncio.run(self.ahead(hidden))
        for part in self.parts:
            hidden = nn.Module.__call__(part, hidden)
        return hidden


model = Whole()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(20):
    print(number, step(model, optimizer))
print(sha(model.parameters()), [name for name, _ in model.named_modules()])
