"""The script restarts itself by execv with another argument after half of the training, as elastic trainers do."""
import os
import sys
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

half = len(sys.argv) > 1
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if half:
    model.load_state_dict(torch.load("half.pt"))
for number in range(4):
    print(sys.argv[1:], number, step(model, optimizer))
print(sha(model.parameters()), flush=True)
if not half:
    torch.save(model.state_dict(), "half.pt")
    os.execv(sys.executable, [sys.executable, __file__, "--second-half"])
