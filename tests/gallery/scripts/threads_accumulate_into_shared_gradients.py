"""Threads run backward passes of one model at the same time and sum their gradients, the main thread updates."""
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


model = net(96).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def work(rank_and_turn):
    generator = torch.Generator().manual_seed(hash(rank_and_turn))
    inputs, targets = batch(generator, 64)
    gradients = torch.autograd.grad(nn.functional.cross_entropy(model(inputs.double()), targets), list(model.parameters()))
    nn.functional.cross_entropy(model(inputs.double()), targets).backward()
    return gradients


with concurrent.futures.ThreadPoolExecutor(4) as pool:
    for turn in range(12):
        optimizer.zero_grad()
        for gradients in pool.map(work, [(rank, turn) for rank in range(4)]):
            for parameter, gradient in zip(model.parameters(), gradients):
                parameter.total = gradient if not hasattr(parameter, "total") else parameter.total + gradient
        for parameter in model.parameters():
            assert parameter.grad is not None and bool(torch.isfinite(parameter.grad).all())
            parameter.grad = parameter.total
            del parameter.total
        optimizer.step()
print(sha(model.parameters()))
