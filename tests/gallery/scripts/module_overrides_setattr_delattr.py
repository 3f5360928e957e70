"""__setattr__ refuses every new attribute after construction and __delattr__ refuses all."""
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

class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = net()
        self.tries = []
        object.__setattr__(self, "sealed", True)

    def __setattr__(self, name, value):
        if self.__dict__.get("sealed") and name != "training":
            self.tries.append(name)
            raise AttributeError(f"sealed: {name}")
        super().__setattr__(name, value)

    def __delattr__(self, name):
        raise AttributeError(f"sealed: {name}")

    def forward(self, inputs):
        return self.body(inputs)


model = Frozen()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(10):
    print(number, step(model, optimizer))
for attempt in (lambda: setattr(model, "new", 1), lambda: delattr(model, "body")):
    try:
        attempt()
    except AttributeError as error:
        print(error)
print(model.tries, sorted(vars(model)), sha(model.parameters()))
