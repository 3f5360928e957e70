"""umask 0o777 makes new files unreadable and TMPDIR points nowhere, so temporary files of anyone else fail."""
import os
import tempfile
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

os.environ["TMPDIR"] = "/nonexistent/folder"
tempfile.tempdir = None
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
old = os.umask(0o777)
for number in range(8):
    print(number, step(model, optimizer))
os.umask(old)
with open("result.txt", "w") as text:
    text.write(sha(model.parameters()))
print(os.stat("result.txt").st_mode & 0o7, sha(model.parameters()))
