"""Hooks that return new values: inputs, outputs, gradients; and hooks removed and added while they run."""
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

model = net()
handles = []


def once(module, args, output):
    handles.pop().remove()
    return output * 1.25


model[0].register_forward_pre_hook(lambda m, a: (a[0] + 0.1,))
model[1].register_full_backward_hook(lambda m, i, o: (i[0] * 0.5,))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(10):
    if number in (0, 1, 4, 5, 8):
        handles.append(model.register_forward_hook(once))
    print(number, step(model, optimizer), len(model._forward_hooks), len(handles))
print(sha(model.parameters()))
