"""Threads end by sys.exit or an exception in forward, backward, hook and step, while others train on."""
import hashlib
import sys
import threading

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


threading.excepthook = lambda arguments: seen.append(arguments.exc_type.__name__)
seen, results = [], {}


def leave(kind):
    if kind == "exit":
        sys.exit(3)
    raise ValueError(kind)


def work(rank):
    model, generator = net(24, rank), torch.Generator().manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    count = [0]

    def hook(*_):
        count[0] += 1
        if count[0] == 5 and rank % 4 != 3:
            leave("exit" if rank < 4 else "error")

    if rank % 4 == 0:
        model[2].register_forward_hook(hook)
    elif rank % 4 == 1:
        model[2].weight.register_hook(hook)
    elif rank % 4 == 2:
        optimizer.register_step_pre_hook(hook)
    for _ in range(10):
        step(model, optimizer, generator)
    results[rank] = sha(model.parameters())


threads = [threading.Thread(target=work, args=(rank,)) for rank in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(sorted(seen), sorted(results.items()))
model, generator = net(), torch.Generator().manual_seed(7)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print([step(model, optimizer, generator).hex() for _ in range(5)])
