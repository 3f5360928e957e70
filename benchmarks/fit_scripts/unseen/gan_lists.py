"""DCGAN-like; samples for a grid after each epoch; WGAN-GP penalty."""

import torch
from torch import nn

torch.manual_seed(0)
G = nn.Sequential(
    nn.ConvTranspose2d(64, 128, 4),
    nn.BatchNorm2d(128),
    nn.ReLU(),
    nn.ConvTranspose2d(128, 64, 4, 2, 1),
    nn.BatchNorm2d(64),
    nn.ReLU(),
    nn.ConvTranspose2d(64, 32, 4, 2, 1),
    nn.ReLU(),
    nn.ConvTranspose2d(32, 3, 4, 2, 1),
    nn.Tanh(),
)
D = nn.Sequential(
    nn.Conv2d(3, 32, 4, 2, 1),
    nn.LeakyReLU(0.2),
    nn.Conv2d(32, 64, 4, 2, 1),
    nn.LeakyReLU(0.2),
    nn.Conv2d(64, 128, 4, 2, 1),
    nn.LeakyReLU(0.2),
    nn.Flatten(),
    nn.Linear(128 * 16, 1),
)
og, od = torch.optim.Adam(G.parameters(), 2e-4, (0.5, 0.9)), torch.optim.Adam(D.parameters(), 2e-4, (0.5, 0.9))
B = 128
for it in range(8):
    real = torch.rand(B, 3, 32, 32) * 2 - 1
    fake = G(torch.randn(B, 64, 1, 1)).detach()
    eps = torch.rand(B, 1, 1, 1)
    mix = (eps * real + (1 - eps) * fake).requires_grad_()
    grad = torch.autograd.grad(D(mix).sum(), mix, create_graph=True)[0]
    d = D(fake).mean() - D(real).mean() + 10 * ((grad.flatten(1).norm(2, 1) - 1) ** 2).mean()
    od.zero_grad()
    d.backward()
    od.step()
    if it % 4 == 3:
        g = -D(G(torch.randn(B, 64, 1, 1))).mean()
        og.zero_grad()
        g.backward()
        og.step()
with torch.no_grad():
    grid = G(torch.randn(400, 64, 1, 1))
print(grid.shape)
