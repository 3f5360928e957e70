"""set_multithreading_enabled(False), set_num_threads and grad modes change in threads that train."""
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


def work(rank):
    generator, model = torch.Generator().manual_seed(rank), net(32, rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(16):
        with torch.autograd.set_multithreading_enabled(number % 2 == 0):
            step(model, optimizer, generator)
        with torch.inference_mode() if number % 3 else torch.no_grad():
            model(batch(generator)[0])
        with torch.no_grad(), torch.enable_grad():
            step(model, optimizer, generator)
    return rank, torch.is_grad_enabled(), sha(model.parameters())


with concurrent.futures.ThreadPoolExecutor(4) as pool:
    for result in pool.map(work, range(8)):
        print(*result)
