"""A GAN as in dcgan: the discriminator is called three times a round and each net has its optimizer."""
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
judge = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-2)
optimizer_d = torch.optim.Adam(judge.parameters(), lr=1e-2)
criterion = nn.BCEWithLogitsLoss()
for number in range(10):
    real, ones, zeros = torch.randn(16, 8) + 2, torch.ones(16, 1), torch.zeros(16, 1)
    judge.zero_grad()
    loss_real = criterion(judge(real), ones)
    loss_real.backward()
    fake = generator(torch.randn(16, 4))
    loss_fake = criterion(judge(fake.detach()), zeros)
    loss_fake.backward()
    optimizer_d.step()
    generator.zero_grad()
    loss_g = criterion(judge(fake), ones)
    loss_g.backward()
    optimizer_g.step()
    print(number, loss_real.item().hex(), loss_fake.item().hex(), loss_g.item().hex())
print(sha(generator.parameters()), sha(judge.parameters()))
