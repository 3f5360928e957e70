"""torch.jit.script compiles whatever hooks it finds on the model, so none of ours may be there."""
import warnings
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
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def script(when):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("ignore", FutureWarning)
        scripted = torch.jit.script(model)
    inputs = torch.ones(2, 8)
    print(when, torch.equal(scripted(inputs), model(inputs)), scripted.code.count("\n"))


script("new")
for number in range(12):
    print(number, step(model, optimizer))
    if number in (0, 4, 8):
        script(number)
script("end")
print(sha(model.parameters()))
