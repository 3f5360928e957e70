"""Five folds, each with a new model and optimizer; the old ones must be freed."""
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

gone = []
for fold in range(5):
    torch.manual_seed(fold)
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = [step(model, optimizer) for _ in range(4)]
    gone += [weakref.ref(model), weakref.ref(optimizer), weakref.ref(model[0].weight)]
    print(fold, losses, sha(model.parameters()))
del model, optimizer
gc.collect()
print([reference() is None for reference in gone])
