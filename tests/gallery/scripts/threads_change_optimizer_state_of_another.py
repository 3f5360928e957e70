"""A thread fills and empties an optimizer's state and groups while another's optimizer steps with them."""
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


model, generator = net(24), torch.Generator().manual_seed(1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
over, turns = threading.Event(), [0]


def meddle():
    while not over.is_set() or turns[0] < 3:
        extra = nn.Parameter(torch.zeros(2))
        optimizer.state[extra]["momentum_buffer"] = torch.zeros(2)
        optimizer.param_groups[0][f"note{turns[0] % 50}"] = turns[0]
        optimizer.defaults[f"note{turns[0] % 50}"] = turns[0]
        optimizer.param_groups[0].pop(f"note{turns[0] % 50}")
        del optimizer.state[extra]
        turns[0] += 1


thread = threading.Thread(target=meddle)
thread.start()
for _ in range(60):
    loss = step(model, optimizer, generator)
over.set()
thread.join()
print(loss.hex(), sha(model.parameters()))
