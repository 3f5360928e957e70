"""The main thread forks at any time while three threads train; children leave at once, train one step, or exit."""
import hashlib
import os
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


results = {}


def work(rank):
    model, generator = net(48, rank), torch.Generator().manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(60):
        step(model, optimizer, generator)
    results[rank] = sha(model.parameters())


threads = [threading.Thread(target=work, args=(rank,)) for rank in range(3)]
for thread in threads:
    thread.start()
statuses = []
for number in range(9):
    child = os.fork()
    if child == 0:
        os.write(1, f"child {number}\n".encode())
        os._exit(number)
    statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
for thread in threads:
    thread.join()
print(statuses)
print(sorted(results.items()))
