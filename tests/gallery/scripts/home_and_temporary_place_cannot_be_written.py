"""HOME, TMPDIR and the caches lie where nothing can be written; the script finds that out by itself."""
# runner: env=HOME=/proc/nowhere
# runner: env=TMPDIR=/proc/nowhere
# runner: env=XDG_CACHE_HOME=/proc/nowhere
import hashlib
import os
import pathlib
import tempfile

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
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(8):
    print(number, step(model, optimizer))
print(pathlib.Path.home(), os.path.expanduser("~/x"), tempfile.gettempdir())
try:
    pathlib.Path.home().mkdir(parents=True)
except OSError as error:
    print(type(error).__name__)
print(sorted(os.listdir(".")), sha(model.parameters()))
