"""Each thread counts its operators with a dispatch mode and a function mode of its own while it trains."""
import concurrent.futures
import hashlib

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


def sha(tensors):
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def net(width=32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


def batch(generator, size=16):
    inputs = torch.randn(size, 8, generator=generator)
    return inputs, inputs[:, :3].argmax(1)


def step(model, optimizer, generator, size=16):
    inputs, targets = batch(generator, size)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.item()


from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class Count(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


def work(rank):
    generator, model = torch.Generator().manual_seed(rank), net(24, rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    operators, functions = Count(), Functions()
    for number in range(9):
        with operators if number % 3 else functions:
            step(model, optimizer, generator)
    return rank, operators.count, functions.count, sha(model.parameters())


with concurrent.futures.ThreadPoolExecutor(4) as pool:
    for result in pool.map(work, range(6)):
        print(*result)
