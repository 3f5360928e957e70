"""A metaclass overrides __call__ and __getattribute__ of the class, forward is a descriptor, and class attributes are frozen."""
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

class Meta(type):
    made = []

    def __call__(cls, *args, **kwargs):
        made = super().__call__(*args, **kwargs)
        Meta.made.append(cls.__name__)
        return made

    def __setattr__(cls, name, value):
        raise TypeError(f"{cls.__name__} is frozen: {name}")


class Forward:
    def __get__(self, instance, owner):
        return (lambda inputs: instance.body(inputs).mul(2)) if instance is not None else self


class Net(nn.Module, metaclass=Meta):
    forward = Forward()

    def __init__(self):
        super().__init__()
        self.body = net()


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(8):
    print(number, step(model, optimizer))
print(Meta.made, sorted(name for name in vars(Net) if not name.startswith("__")), sha(model.parameters()))
