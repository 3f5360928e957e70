"""A proxy module whose __getattr__ answers every name with a lambda, so hasattr is always true."""
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

class Proxy(nn.Module):
    asked = []

    def __init__(self):
        super().__init__()
        self.body = net()

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            if not name.startswith("__"):
                Proxy.asked.append(name)
            return lambda *args, **kwargs: name

    def forward(self, inputs):
        return self.body(inputs)


model = Proxy()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(10):
    print(number, step(model, optimizer), model.anything())
print(Proxy.asked, sha(model.parameters()))
