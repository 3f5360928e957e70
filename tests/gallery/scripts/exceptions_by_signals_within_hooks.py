"""SIGINT and SIGUSR1 are raised in the middle of forward, of backward and of the update; handlers raise, loops go on."""
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


class Stop(Exception):
    pass


def handler(number, frame):
    raise Stop(number)


signal.signal(signal.SIGUSR1, handler)
model, generator = net(24), torch.Generator().manual_seed(1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
place = [""]


def kill(where, kind=signal.SIGUSR1):
    if place[0] == where:
        place[0] = ""
        signal.raise_signal(kind)


model[1].register_forward_hook(lambda *_: kill("forward"))
model[2].weight.register_hook(lambda gradient: kill("backward"))
model[2].bias.register_hook(lambda gradient: kill("interrupt", signal.SIGINT))
optimizer.register_step_pre_hook(lambda *_: kill("before"))
optimizer.register_step_post_hook(lambda *_: kill("after"))
for number in range(36):
    place[0] = ["", "forward", "backward", "interrupt", "before", "after"][number % 6]
    try:
        print(number, step(model, optimizer, generator).hex())
    except (Stop, KeyboardInterrupt) as error:
        print(number, type(error).__name__, error.args)
print(sha(model.parameters()))
