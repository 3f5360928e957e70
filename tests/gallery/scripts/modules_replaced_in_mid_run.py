"""Layers are swapped, deleted and added between steps, as in transfer learning, and a class is changed by assignment."""
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

class Loud(nn.Linear):
    def forward(self, inputs):
        return super().forward(inputs) * 1.5


model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(14):
    if number == 3:
        model[0].requires_grad_(False)
        model[2] = nn.Linear(16, 3)
        optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    if number == 5:
        model[2].__class__ = Loud
    if number == 8:
        model.add_module("extra", nn.Identity())
        model[1].forward = lambda inputs: inputs.tanh()
    if number == 11:
        del model.extra, model[1].forward
    print(number, step(model, optimizer), [type(m).__name__ for m in model])
print(sha(model.parameters()))
