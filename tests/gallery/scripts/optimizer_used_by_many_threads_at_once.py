"""One optimizer object steps in several threads at the same time, each with a lock around backward and update."""
import concurrent.futures
import hashlib
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


models = [net(24, rank) for rank in range(4)]
optimizer = torch.optim.SGD([{"params": model.parameters()} for model in models], lr=0.01)
lock, steps = threading.Lock(), []


def work(rank):
    generator = torch.Generator().manual_seed(rank)
    for number in range(15):
        inputs, targets = batch(generator)
        with lock:
            models[rank].zero_grad()
        loss = nn.functional.cross_entropy(models[rank](inputs), targets)
        with lock:
            loss.backward()
            optimizer.step()
        steps.append(rank)


with concurrent.futures.ThreadPoolExecutor(4) as pool:
    list(pool.map(work, range(4)))
print(len(steps), all(bool(torch.isfinite(parameter).all()) for model in models for parameter in model.parameters()))
