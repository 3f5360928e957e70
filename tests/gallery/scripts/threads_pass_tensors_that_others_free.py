"""Threads hand activations and gradients around in rings and free what others allocated; nothing may be left."""
import gc
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


ring = [queue.Queue(8) for _ in range(3)]
sums = [0.0] * 3


def work(rank):
    generator, model = torch.Generator().manual_seed(rank), net(32, rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(25):
        inputs, targets = batch(generator, 64)
        optimizer.zero_grad()
        output = model(inputs)
        nn.functional.cross_entropy(output, targets).backward()
        optimizer.step()
        ring[(rank + 1) % 3].put([output.detach(), *[parameter.grad.clone() for parameter in model.parameters()]])
        del output
        sums[rank] += sum(float(tensor.double().sum()) for tensor in ring[rank].get())


threads = [threading.Thread(target=work, args=(rank,)) for rank in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
gc.collect()
print([value.hex() for value in sums], [source.empty() for source in ring])
