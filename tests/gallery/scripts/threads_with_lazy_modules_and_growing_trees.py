"""Threads make lazy modules and grow and shrink a shared tree of modules while the main thread trains another part."""
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


class Tree(nn.Module):
    def __init__(self):
        super().__init__()
        self.core = net(24)
        self.rest = nn.ModuleDict()

    def forward(self, x):
        return self.core(x)


model, over, turns = Tree(), threading.Event(), [0, 0]


def grow(rank):
    while not over.is_set() or turns[rank] < 5:
        name = f"part{rank}_{turns[rank] % 7}"
        part = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(2))
        model.rest[name] = part
        part(torch.ones(2, 8)).sum().backward()
        model.rest[name].register_forward_hook(lambda *_: None)
        model.rest[name].extra = nn.Parameter(torch.zeros(3))
        if turns[rank] % 2:
            del model.rest[name]
        turns[rank] += 1


threads = [threading.Thread(target=grow, args=(rank,)) for rank in range(2)]
for thread in threads:
    thread.start()
generator, optimizer = torch.Generator().manual_seed(1), torch.optim.SGD(model.core.parameters(), lr=0.1)
for _ in range(60):
    loss = step(model, optimizer, generator)
over.set()
for thread in threads:
    thread.join()
print(loss.hex(), sha(model.core.parameters()))
