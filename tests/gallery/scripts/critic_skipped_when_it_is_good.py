"""A GAN whose critic is left as it is where it is good enough: each round updates the generator."""
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


generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
critic = nn.Sequential(nn.Linear(8, 16), nn.Softplus(), nn.Linear(16, 1))
og = torch.optim.Adam(generator.parameters(), 1e-3)
od = torch.optim.Adam(critic.parameters(), 1e-3)
soft = nn.functional.softplus
def d_main(real):
    od.zero_grad()
    (soft(critic(generator(torch.randn(16, 4)).detach())).mean() + soft(-critic(real)).mean()).backward()
    od.step()
def d_reg(real, k):
    real = real.detach().requires_grad_()
    out = critic(real)
    (slope,) = torch.autograd.grad(out.sum(), real, create_graph=True)
    od.zero_grad()
    (5 * k * slope.square().sum(1).mean() + 0 * out[0, 0]).backward()
    od.step()
def g_main():
    og.zero_grad()
    soft(-critic(generator(torch.randn(16, 4)))).mean().backward()
    og.step()
def g_reg(k):
    z = torch.randn(16, 4, requires_grad=True)
    fake = generator(z)
    (j,) = torch.autograd.grad((fake * torch.randn_like(fake)).sum(), z, create_graph=True)
    og.zero_grad()
    (k * (j.square().sum(1).sqrt() - 1).square().mean() + 0 * fake[0, 0]).backward()
    og.step()

for number in range(16):
    real = torch.randn(16, 8) + 2
    if number % 3 != 1 and number not in (5, 9):
        d_main(real)
    g_main()
print(sha([*generator.parameters(), *critic.parameters()]))
