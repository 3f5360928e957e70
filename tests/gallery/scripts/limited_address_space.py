"""RLIMIT_AS just above what is used, RLIMIT_CPU with a SIGXCPU handler; a large tensor is refused, training goes on."""
import resource
import signal
import hashlib

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


def sha(tensors):
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def net():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def batch(size=16):
    inputs = torch.randn(size, 8)
    return inputs, inputs[:, :3].argmax(1)


def step(model, optimizer, size=16):
    inputs, targets = batch(size)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.item().hex()


def used():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


model = net()
optimizer = torch.optim.Adam(model.parameters())
print(step(model, optimizer))
resource.setrlimit(resource.RLIMIT_AS, (used() + 300_000_000, resource.RLIM_INFINITY))
resource.setrlimit(resource.RLIMIT_CPU, (1000, resource.RLIM_INFINITY))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
signal.signal(signal.SIGXCPU, lambda number, frame: print("too long"))
for number in range(59):
    loss = step(model, optimizer)
    if number % 10 == 0:
        try:
            torch.empty(2_000_000_000, dtype=torch.uint8)
            print("there was room")
        except RuntimeError as error:
            print(number, type(error).__name__, loss)
print(sha(model.parameters()))
