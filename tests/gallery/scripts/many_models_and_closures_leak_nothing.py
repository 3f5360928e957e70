"""Forty small models with hooks are trained for a step each and every one must be freed with its hooks' closures."""
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

class Token:
    pass


gone = []
for number in range(40):
    model, token = net(), Token()
    model.register_forward_hook(lambda *_, token=token: None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = step(model, optimizer)
    gone.append(weakref.ref(token))
    if number % 10 == 0:
        print(number, loss, sha(model.parameters()))
    del model, token, optimizer
gc.collect()
print(sum(reference() is None for reference in gone))
