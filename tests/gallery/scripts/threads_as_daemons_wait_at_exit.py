"""Daemon threads have trained and wait, in the middle of a generator and of a step, when the interpreter ends."""
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


ready = [threading.Event() for _ in range(3)]


def work(rank):
    model, generator = net(16, rank), torch.Generator().manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(10):
        step(model, optimizer, generator)
    loss = nn.functional.cross_entropy(model(batch(generator)[0]), batch(generator)[1])
    model[2].register_forward_hook(lambda *_: (ready[rank].set(), threading.Event().wait()))
    if rank:
        loss.backward()
    model(batch(generator)[0])


for rank in range(3):
    threading.Thread(target=work, args=(rank,), daemon=True).start()
model, generator = net(), torch.Generator().manual_seed(7)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(20):
    loss = step(model, optimizer, generator)
for event in ready:
    event.wait()
print(loss.hex(), sha(model.parameters()))
