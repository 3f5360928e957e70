"""The ImageNet example's checkpoint: dict of state dicts, saved, loaded into new objects, and training goes on."""
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
for number in range(8):
    print(number, step(model, optimizer))
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}, "checkpoint.pt")
saved = torch.load("checkpoint.pt", weights_only=True)
model = net()
model.load_state_dict(saved["model"])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
optimizer.load_state_dict(saved["optimizer"])
torch.set_rng_state(saved["rng"])
for number in range(8):
    print(number, step(model, optimizer))
print(sha(model.parameters()))
