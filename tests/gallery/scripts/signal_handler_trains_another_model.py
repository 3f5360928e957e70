"""The handler of a timer trains a model of its own, with backward and optimizer, within steps of the main loop."""
import hashlib
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


inner, inner_generator = net(16, 1), torch.Generator().manual_seed(1)
inner_optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
turns, busy = [0], [False]


def train(number, frame):
    if busy[0]:
        return
    busy[0] = True
    if turns[0] < 12:
        with torch.enable_grad():
            step(inner, inner_optimizer, inner_generator)
        turns[0] += 1
    busy[0] = False


model, generator = net(48), torch.Generator().manual_seed(2)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
signal.signal(signal.SIGALRM, train)
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
count = 0
while turns[0] < 12:
    loss = step(model, optimizer, generator) if count < 60 else loss
    count += 1
signal.setitimer(signal.ITIMER_REAL, 0)
while count < 60:
    loss = step(model, optimizer, generator)
    count += 1
print(turns, loss.hex(), sha(model.parameters()), sha(inner.parameters()))
