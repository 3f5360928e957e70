"""A custom Function raises the user's error in backward, through the autograd engine, and nobody catches it."""
# runner: ends=exit 1
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

class BackwardFailed(Exception):
    pass


class Bomb(torch.autograd.Function):
    left = 5

    @staticmethod
    def forward(context, value):
        return value.clone()

    @staticmethod
    def backward(context, gradient):
        if Bomb.left == 0:
            raise BackwardFailed("no more")
        Bomb.left -= 1
        return gradient


body = net()
optimizer = torch.optim.SGD(body.parameters(), lr=0.1)
for number in range(10):
    print(number, step(lambda inputs: Bomb.apply(body(inputs)), optimizer))
