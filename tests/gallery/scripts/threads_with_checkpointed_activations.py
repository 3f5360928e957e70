"""Four threads train with activation checkpointing, reentrant and not; each result is exact."""
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


from torch.utils.checkpoint import checkpoint


def work(rank):
    generator, model = torch.Generator().manual_seed(rank), net(48, rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(12):
        inputs, targets = batch(generator)
        inputs.requires_grad_()
        optimizer.zero_grad()
        middle = checkpoint(model[:2], inputs, use_reentrant=rank % 2 == 0)
        middle = checkpoint(model[2:4], middle, use_reentrant=number % 2 == 0)
        nn.functional.cross_entropy(model[4](middle), targets).backward()
        optimizer.step()
    return rank, sha(model.parameters())


with concurrent.futures.ThreadPoolExecutor(4) as pool:
    for result in pool.map(work, range(8)):
        print(*result)
