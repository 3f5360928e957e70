"""__getattr__ and __getattribute__ raise errors that are no AttributeError for unknown names, and count what is asked for."""
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

class Strict(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = net()

    def __getattribute__(self, name):
        if "scope" in name.lower() or "watch" in name.lower():
            raise PermissionError(name)
        return super().__getattribute__(name)

    def __getattr__(self, name):
        if name in ("body",) or name.startswith("__"):
            return super().__getattr__(name)
        raise KeyError(name)

    def forward(self, inputs):
        return self.body(inputs)


model = Strict()
optimizer = torch.optim.SGD(model.body.parameters(), lr=0.1)
for number in range(10):
    print(number, step(model, optimizer))
try:
    model.unknown
except KeyError as error:
    print("KeyError", error)
print(sha(model.body.parameters()))
