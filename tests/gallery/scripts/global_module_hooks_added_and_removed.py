"""The user's own global module hooks come and go in mid-run; their count and those left are printed."""
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

model = net()
seen, handles = [], []
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(14):
    if number in (2, 6):
        handles.append(parts.register_module_forward_hook(lambda m, a, o: seen.append(type(m).__name__)))
        handles.append(parts.register_module_forward_pre_hook(lambda m, a: seen.append("pre")))
        handles.append(parts.register_module_full_backward_hook(lambda m, i, o: seen.append("bwd")))
    if number in (4, 11):
        while handles:
            handles.pop().remove()
    print(number, step(model, optimizer), seen)
    seen.clear()
print(sha(model.parameters()))
