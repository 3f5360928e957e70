"""SIGUSR1, SIGUSR2, SIGALRM and SIGTERM handlers that only count; the dispositions of all signals are shown."""
import os
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

seen = []
for name in ("SIGUSR1", "SIGUSR2", "SIGALRM", "SIGTERM", "SIGHUP", "SIGPROF"):
    signal.signal(getattr(signal, name), lambda number, frame: seen.append(signal.Signals(number).name))
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(14):
    print(number, step(model, optimizer), seen)
    seen.clear()
    os.kill(os.getpid(), [signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGHUP, signal.SIGPROF][number % 5])
    signal.raise_signal(signal.SIGALRM)
print(signal.getsignal(signal.SIGCHLD), signal.getsignal(signal.SIGPIPE), signal.pthread_sigmask(signal.SIG_BLOCK, []))
print(sha(model.parameters()))
