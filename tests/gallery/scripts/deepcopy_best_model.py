"""Keeps the best model by copy.deepcopy as every second tutorial does, at steps that fall in and between recording windows."""
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


def step(model, optimizer, size=16):
    inputs, targets = batch(size)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.item().hex()

model = net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
best, best_loss = None, float("inf")
for number in range(20):
    loss = float.fromhex(step(model, optimizer))
    if loss < best_loss:
        best, best_loss = copy.deepcopy(model), loss
        print(number, "better", loss.hex(), sha(best.parameters()))
model.load_state_dict(best.state_dict())
print(sha(model.parameters()))
