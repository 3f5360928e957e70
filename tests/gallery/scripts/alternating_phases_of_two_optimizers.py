"""Architecture search: weights for a while, then the architecture, phases of other lengths each time."""
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

model, mixing = net(), nn.Parameter(torch.zeros(3))
weights, architecture = torch.optim.SGD(model.parameters(), 0.1), torch.optim.Adam([mixing], 1e-2)
for length in (7, 4, 9, 3):
    for optimizer in (weights, architecture):
        for _ in range(length if optimizer is weights else max(length // 2, 2) - (length == 9)):
            inputs, targets = batch()
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs) * mixing.softmax(0) * 3, targets)
            loss.backward()
            optimizer.step()
    print(length, loss.item().hex())
print(sha(model.parameters()), sha([mixing]))
