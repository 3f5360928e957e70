"""Parameters are a tensor subclass with __torch_function__ that counts, and inputs are another subclass."""
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

class Counted(torch.Tensor):
    calls = 0

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        Counted.calls += 1
        return super().__torch_function__(function, types, args, kwargs or {})


model = nn.Linear(8, 3, bias=False)
model.weight = nn.Parameter(model.weight.detach().as_subclass(Counted))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
for number in range(10):
    inputs, targets = batch()
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    print(number, type(loss).__name__, loss.item().hex(), Counted.calls)
print(type(model.weight).__name__, sha([model.weight.as_subclass(torch.Tensor)]))
