"""__hash__ raises an own error; the class call, id and weak references are all that works."""
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

class Unhashable(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = net()

    def __hash__(self):
        raise ArithmeticError("never hash me")

    def forward(self, inputs):
        return self.body(inputs)


model = Unhashable()
reference = weakref.ref(model)
optimizer = torch.optim.SGD(model.body.parameters(), lr=0.1)
for number in range(8):
    print(number, step(model, optimizer))
weights = sha(model.body.parameters())
del model
print(reference() is None, weights)
