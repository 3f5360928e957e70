"""A tuple of model and optimizer is deep-copied so that the copied optimizer drives the copied model."""
import copy
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

model = net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for number in range(6):
    print(number, step(model, optimizer))
model_2, optimizer_2 = copy.deepcopy((model, optimizer))
for number in range(6):
    print(number, step(model_2, optimizer_2))
print(sorted(vars(optimizer)) == sorted(vars(optimizer_2)), sha(model.parameters()), sha(model_2.parameters()))
