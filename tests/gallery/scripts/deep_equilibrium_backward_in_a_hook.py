"""Deep equilibrium: a fixed point without gradients, and a hook of a gradient that solves the adjoint by further backward passes."""
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

class Equilibrium(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(8, 8), nn.Linear(8, 3)
        with torch.no_grad():
            self.inner.weight.mul_(0.3)

    def cell(self, z, x):
        return torch.tanh(self.inner(z) + x)

    def forward(self, x):
        with torch.no_grad():
            z = torch.zeros_like(x)
            for _ in range(20):
                z = self.cell(z, x)
        z = self.cell(z, x)
        z0 = z.clone().detach().requires_grad_()
        f0 = self.cell(z0, x)

        def solve(grad):
            g = grad
            for _ in range(12):
                g = torch.autograd.grad(f0, z0, g, retain_graph=True)[0] + grad
            return g

        z.register_hook(solve)
        return self.head(z)


model = Equilibrium()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(8):
    print(step(model, optimizer))
print(sha(model.parameters()))
