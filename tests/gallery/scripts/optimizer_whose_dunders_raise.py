"""An optimizer with __repr__, __getstate__, __hash__, __len__ and state_dict that raise; only step and zero_grad work."""
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

def refuse(*args, **kwargs):
    raise RuntimeError("do not touch")


class Touchy(torch.optim.SGD):
    __repr__ = __getstate__ = __len__ = __bool__ = __eq__ = __hash__ = state_dict = refuse


model = net()
optimizer = Touchy(model.parameters(), lr=0.1)
for number in range(10):
    print(number, step(model, optimizer))
print(sha(model.parameters()))
