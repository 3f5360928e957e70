"""Child modules know their parent as a submodule, so a walk without a memory of what it saw never ends."""
import copy
import gc
import weakref
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

class Child(nn.Module):
    def __init__(self, parent):
        super().__init__()
        self.parent, self.layer = parent, nn.Linear(8, 8)

    def forward(self, inputs):
        return self.layer(inputs).relu()


class Parent(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = Child(self)
        self.two = Child(self)
        self.head = nn.Linear(8, 3)
        self.itself = self

    def forward(self, inputs):
        return self.head(self.two(self.one(inputs)))


model = Parent()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(10):
    print(number, step(model, optimizer))
print(len(list(model.modules())), sha(copy.deepcopy(model).parameters()))
reference = weakref.ref(model)
del model, optimizer
gc.collect()
print(reference() is None)
