"""A handler of SIGUSR1 and of a one-millisecond timer copies, saves and evaluates the model wherever the training is."""
import copy
import hashlib
import io
import os
import signal

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


model, generator = net(48), torch.Generator().manual_seed(1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
handled, busy, inputs = [0, 0], [False], torch.ones(4, 8)


def save(number, frame):
    handled[number == signal.SIGALRM] += 1
    if busy[0]:  # the one before is not done
        return
    busy[0] = True
    torch.save(copy.deepcopy(model.state_dict()), io.BytesIO())
    with torch.no_grad():
        assert bool(torch.isfinite(model(inputs)).all())
    busy[0] = False


signal.signal(signal.SIGUSR1, save)
signal.signal(signal.SIGALRM, save)
step(model, optimizer, generator)
save(0, None)  # what it imports is there from now on
handled[0] = 0
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.003)
for number in range(100):
    loss = step(model, optimizer, generator)
    if number % 10 == 0:
        os.kill(os.getpid(), signal.SIGUSR1)
signal.setitimer(signal.ITIMER_REAL, 0)
print(handled[0], handled[1] > 0, loss.hex(), sha(model.parameters()))
