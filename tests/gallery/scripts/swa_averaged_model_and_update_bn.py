"""Stochastic weight averaging as in the PyTorch tutorial: AveragedModel copies the model after its first calls, update_bn evaluates it."""
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

model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
averaged = None
for number in range(12):
    print(number, step(model, optimizer))
    if number == 4:
        averaged = torch.optim.swa_utils.AveragedModel(model)
    elif number > 4:
        averaged.update_parameters(model)
torch.optim.swa_utils.update_bn([batch()[0] for _ in range(4)], averaged)
print(averaged.n_averaged.item(), sha(averaged.parameters()), sha(averaged.buffers()))
