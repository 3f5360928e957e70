"""Decimal context with traps, locale set, and numpy errors raised: numbers printed by anyone else could fail."""
import decimal
import locale
import numpy
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

locale.setlocale(locale.LC_ALL, "C")
decimal.getcontext().prec = 2
decimal.getcontext().traps[decimal.Inexact] = True
numpy.seterr(all="raise")
torch.set_printoptions(precision=2, sci_mode=True)
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(6):
    print(number, step(model, optimizer), model[2].bias.detach())
try:
    decimal.Decimal(1) / 3
except decimal.Inexact:
    print("inexact")
print(numpy.geterr(), sha(model.parameters()))
