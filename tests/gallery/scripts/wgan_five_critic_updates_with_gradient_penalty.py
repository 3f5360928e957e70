"""WGAN-GP: five critic updates with double backward for one of the generator; a round is one step."""
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

generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
critic = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer_g = torch.optim.RMSprop(generator.parameters(), lr=1e-3)
optimizer_c = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
for number in range(5):
    for _ in range(5):
        real, fake = torch.randn(16, 8) + 2, generator(torch.randn(16, 4)).detach()
        mixed = torch.lerp(real, fake, torch.rand(16, 1)).requires_grad_()
        slope = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)[0]
        loss = critic(fake).mean() - critic(real).mean() + 10 * ((slope.norm(dim=1) - 1) ** 2).mean()
        optimizer_c.zero_grad()
        loss.backward()
        optimizer_c.step()
    optimizer_g.zero_grad()
    loss_g = -critic(generator(torch.randn(16, 4))).mean()
    loss_g.backward()
    optimizer_g.step()
    print(number, loss.item().hex(), loss_g.item().hex())
print(sha(generator.parameters()), sha(critic.parameters()))
