"""A shuffling DataLoader draws its base seed from the global generator, so any extra iterator would change the order."""
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

from torch.utils.data import DataLoader, TensorDataset

model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(*batch(64))
loader = DataLoader(data, batch_size=16, shuffle=True)
for epoch in range(2):
    for number, (inputs, targets) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        print(epoch, number, loss.item().hex(), targets.tolist())
print(len(loader), sorted(vars(loader)), torch.rand(1).item().hex(), sha(model.parameters()))
