"""A pipeline: forward passes in one thread, backward passes in another, updates in a third."""
import hashlib
import queue
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


stages = [queue.Queue(1) for _ in range(3)]
models = [net(24, rank) for rank in range(3)]
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
lines = []


def forward():
    generators = [torch.Generator().manual_seed(rank) for rank in range(3)]
    for _ in range(12):
        for rank, model in enumerate(models):
            stages[2].get()
            inputs, targets = batch(generators[rank])
            stages[0].put((rank, nn.functional.cross_entropy(model(inputs), targets)))
    stages[0].put(None)


def backward():
    while (got := stages[0].get()) is not None:
        rank, loss = got
        optimizers[rank].zero_grad()
        loss.backward()
        stages[1].put((rank, loss.item().hex()))
    stages[1].put(None)


def update():
    stages[2].put(None)
    while (got := stages[1].get()) is not None:
        optimizers[got[0]].step()
        lines.append(got)
        stages[2].put(None)


threads = [threading.Thread(target=what) for what in (forward, backward, update)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(lines), lines[-3:])
for model in models:
    print(sha(model.parameters()))
