"""Threads run pools of forked processes while the main thread trains; the results come back in order."""
import concurrent.futures
import hashlib
import multiprocessing

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


def square(number):
    return number * number


def work(rank):
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return rank, sum(pool.map(square, range(50)))


if __name__ == "__main__":
    model, generator = net(32), torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(work, rank) for rank in range(3)]
        for _ in range(40):
            loss = step(model, optimizer, generator)
        for done in waiting:
            print(*done.result())
    print(loss.hex(), sha(model.parameters()))
