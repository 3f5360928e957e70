"""Tasks of one loop train two models in turn, others train in threads, one is cancelled in mid step."""
import asyncio
import contextvars
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


current = contextvars.ContextVar("current", default="none")


async def train(name, rank, steps):
    current.set(name)
    model, generator = net(24, rank), torch.Generator().manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        inputs, targets = batch(generator)
        optimizer.zero_grad()
        output = model(inputs)
        await asyncio.sleep(0)
        nn.functional.cross_entropy(output, targets).backward()
        await asyncio.sleep(0)
        optimizer.step()
    return current.get(), sha(model.parameters())


def train_in_thread(rank):
    model, generator = net(24, rank), torch.Generator().manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(15):
        step(model, optimizer, generator)
    return current.get(), sha(model.parameters())


async def main():
    current.set("main")
    endless = asyncio.create_task(train("endless", 9, 100000))
    tasks = [asyncio.create_task(train(f"task {rank}", rank, 15)) for rank in range(2)]
    threads = [asyncio.to_thread(train_in_thread, rank) for rank in range(2, 4)]
    for result in await asyncio.gather(*tasks, *threads):
        print(*result)
    endless.cancel()
    try:
        await endless
    except asyncio.CancelledError:
        print("cancelled", current.get())


asyncio.run(main())
