"""After del and gc.collect the model, its layers and the optimizer must be gone, at several moments of the run."""
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

for turn, steps in enumerate((0, 1, 5, 10)):
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    watched = [weakref.ref(thing) for thing in (model, model[0], model[2].weight, optimizer)]
    print([step(model, optimizer) for _ in range(steps)], sha(model.parameters()))
    del model, optimizer
    gc.collect()
    print(turn, [reference() is None for reference in watched])
