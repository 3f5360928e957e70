"""The main thread profiles a few steps again and again while two threads train."""
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


results = {}


def work(rank):
    model, generator = net(24, rank), torch.Generator().manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(60):
        step(model, optimizer, generator)
    results[rank] = sha(model.parameters())


threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
for thread in threads:
    thread.start()
model, generator = net(32, 5), torch.Generator().manual_seed(5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
found = []
for turn in range(5):
    step(model, optimizer, generator)
    with torch.autograd.profiler.profile() as own:
        step(model, optimizer, generator)
    found.append(sum(event.name == "aten::addmm" for event in own.function_events) >= 3)
for thread in threads:
    thread.join()
print(found, sorted(results.items()), sha(model.parameters()))
