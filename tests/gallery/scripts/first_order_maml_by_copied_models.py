"""First-order MAML: copies with an SGD of their own, gradients handed to an outer Adam."""
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


model = net()
outer = torch.optim.Adam(model.parameters(), 1e-3)
for number in range(6):
    outer.zero_grad()
    for task in range(2):
        fast = copy.deepcopy(model)
        inner = torch.optim.SGD(fast.parameters(), 0.1)
        for _ in range(3):
            x, y = batch()
            inner.zero_grad()
            nn.functional.cross_entropy(fast(x), y).backward()
            inner.step()
        x, y = batch()
        loss = nn.functional.cross_entropy(fast(x), y)
        for p, g in zip(model.parameters(), torch.autograd.grad(loss, list(fast.parameters()))):
            p.grad = g / 2 if p.grad is None else p.grad + g / 2
    outer.step()
print(sha(model.parameters()))
