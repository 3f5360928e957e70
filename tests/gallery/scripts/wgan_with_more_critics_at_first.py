"""Critics of a Wasserstein GAN: 20 for each of the first generator updates, then 5, and 20 again every fourth."""
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

generator, critic = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer_g = torch.optim.RMSprop(generator.parameters(), lr=1e-3)
optimizer_c = torch.optim.RMSprop(critic.parameters(), lr=1e-3)
for number in range(12):
    for _ in range(20 if number < 3 or number % 4 == 0 else 5):
        for parameter in critic.parameters():
            parameter.data.clamp_(-0.1, 0.1)
        loss = critic(generator(torch.randn(16, 4)).detach()).mean() - critic(torch.randn(16, 8)).mean()
        optimizer_c.zero_grad()
        loss.backward()
        optimizer_c.step()
    optimizer_g.zero_grad()
    loss_g = -critic(generator(torch.randn(16, 4))).mean()
    loss_g.backward()
    optimizer_g.step()
    print(number, loss.item().hex(), loss_g.item().hex())
print(sha(generator.parameters()), sha(critic.parameters()))
