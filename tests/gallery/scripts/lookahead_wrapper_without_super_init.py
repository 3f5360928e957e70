"""A wrapped optimizer that is a subclass of Optimizer but never calls its __init__, so the usual hook dicts are missing on it."""
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

class Lookahead(torch.optim.Optimizer):
    def __init__(self, base, every=4, alpha=0.5):
        self.base, self.every, self.alpha, self.count = base, every, alpha, 0
        self.slow = [[p.detach().clone() for p in group["params"]] for group in base.param_groups]

    @property
    def param_groups(self):
        return self.base.param_groups

    def zero_grad(self):
        self.base.zero_grad()

    def step(self, closure=None):
        loss = self.base.step(closure)
        self.count += 1
        if self.count % self.every == 0:
            for group, slow in zip(self.param_groups, self.slow):
                for p, kept in zip(group["params"], slow):
                    kept.lerp_(p.detach(), self.alpha)
                    p.data.copy_(kept)
        return loss


model = net()
optimizer = Lookahead(torch.optim.Adam(model.parameters(), lr=1e-2))
for number in range(12):
    print(number, step(model, optimizer), sorted(vars(optimizer)))
print(sha(model.parameters()))
