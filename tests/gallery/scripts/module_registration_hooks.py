"""Global hooks for the registration of modules, parameters and buffers see exactly what the user registers."""
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

from torch.nn.modules import module as parts

seen = []
handles = [
    parts.register_module_module_registration_hook(lambda m, n, s: seen.append(("module", n))),
    parts.register_module_parameter_registration_hook(lambda m, n, p: seen.append(("parameter", n))),
    parts.register_module_buffer_registration_hook(lambda m, n, b: seen.append(("buffer", n))),
]
model = nn.Sequential(net(), nn.BatchNorm1d(3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(6):
    print(number, step(model, optimizer), len(seen))
print(seen, sha(model.parameters()))
