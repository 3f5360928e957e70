"""Anomaly mode is on while four threads train; one of them makes a nan each few steps and catches the error."""
import concurrent.futures
import hashlib
import warnings

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


warnings.simplefilter("ignore")


def work(rank):
    generator, model = torch.Generator().manual_seed(rank), net(24, rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    failed = 0
    for number in range(10):
        if rank == 1 and number % 3 == 0:
            inputs, targets = batch(generator)
            try:
                optimizer.zero_grad()
                (model(inputs) * 0.0).sqrt().mul(0.0).sum().backward()
            except RuntimeError as error:
                failed += "nan" in str(error)
            optimizer.zero_grad()
        else:
            step(model, optimizer, generator)
    return rank, failed, sha(model.parameters())


with torch.autograd.detect_anomaly(), concurrent.futures.ThreadPoolExecutor(4) as pool:
    for result in pool.map(work, range(8)):
        print(*result)
