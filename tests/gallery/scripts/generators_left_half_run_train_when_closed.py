"""Trainings are generators left half run; their finally clauses train on when the collector closes them."""
import gc
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


def training(rank):
    model, generator = net(16, rank), torch.Generator().manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        while True:
            inputs, targets = batch(generator)
            optimizer.zero_grad()
            output = model(inputs)
            yield "forward"
            nn.functional.cross_entropy(output, targets).backward()
            yield "backward"
            optimizer.step()
            yield "step"
    finally:
        with torch.enable_grad():
            step(model, optimizer, generator)
        lines.append((rank, sha(model.parameters())))


lines = []
for turn in range(6):
    loops = [training(turn * 4 + rank) for rank in range(4)]
    for number in range(11):
        for rank, loop in enumerate(loops):
            if number < 5 + rank + turn:
                next(loop)
    knot = [loops]
    knot.append(knot)
    del loops, loop, knot
    gc.collect()
    print(turn, sorted(lines))
    lines.clear()
