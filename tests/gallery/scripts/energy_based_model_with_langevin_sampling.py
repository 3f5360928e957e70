"""Each step samples by twenty gradients of the input with frozen parameters, then trains the energy."""
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

energy = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(energy.parameters(), 1e-3)
for number in range(10):
    real, sample = torch.randn(16, 8) + 1, torch.rand(16, 8).requires_grad_()
    energy.requires_grad_(False)
    for _ in range(20):
        energy(sample).sum().backward()
        sample.data.add_(sample.grad, alpha=-0.1).add_(torch.randn(16, 8), alpha=0.01)
        sample.grad.detach_()
        sample.grad.zero_()
    energy.requires_grad_(True)
    optimizer.zero_grad()
    loss = energy(real).mean() - energy(sample.detach()).mean()
    loss.backward()
    optimizer.step()
    print(number, loss.item().hex())
print(sha(energy.parameters()))
