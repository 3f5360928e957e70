"""After each epoch a copy is evaluated in a pool while training goes on; results are read at the end."""
import concurrent.futures
import copy
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


def evaluate(epoch, kept):
    kept.eval()
    inputs, targets = batch(torch.Generator().manual_seed(99), 400)
    with torch.no_grad():
        right = [(kept(part).argmax(1) == wanted).sum().item() for part, wanted in zip(inputs.split(20), targets.split(20))]
    return epoch, sum(right)


model, generator = net(48), torch.Generator().manual_seed(1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
with concurrent.futures.ThreadPoolExecutor(3) as pool:
    waiting = []
    for epoch in range(10):
        for _ in range(8):
            step(model, optimizer, generator)
        waiting.append(pool.submit(evaluate, epoch, copy.deepcopy(model)))
    for done in waiting:
        print(*done.result())
print(sha(model.parameters()))
