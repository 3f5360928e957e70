"""repr, str, extra_repr and _get_name of the module and of its exception raise."""
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

class Shy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = net()

    def refuse(self, *args):
        raise ZeroDivisionError("no name")

    __repr__ = __str__ = extra_repr = _get_name = __format__ = refuse

    def forward(self, inputs):
        if inputs.shape[0] == 3:
            raise ShyError(self)
        return self.body(inputs)


class ShyError(Exception):
    def __str__(self):
        raise ZeroDivisionError("no text")

    __repr__ = __str__


model = Shy()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(10):
    print(number, step(model, optimizer))
    if number in (0, 4, 7):
        try:
            model(torch.ones(3, 8))
        except ShyError as error:
            print("caught", type(error).__name__, error.args[0] is model)
print(sha(model.parameters()))
