"""Parametrizations change the class of a module in mid-run and compute weights in properties; weight_norm and orthogonal as in the tutorial."""
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

class Symmetric(nn.Module):
    def forward(self, weight):
        return weight.triu() + weight.triu(1).transpose(-1, -2)


model = nn.Sequential(nn.Linear(8, 8), nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)), nn.Linear(8, 3))
for number in range(12):
    if number == 4:
        nn.utils.parametrize.register_parametrization(model[0], "weight", Symmetric())
        nn.utils.parametrizations.spectral_norm(model[2])
    if number == 9:
        nn.utils.parametrize.remove_parametrizations(model[0], "weight")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with nn.utils.parametrize.cached():
        print(number, step(model, optimizer))
print([type(m).__name__ for m in model], list(model.state_dict()), sha(model.parameters()))
