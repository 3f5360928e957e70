"""Three steps each with eleven optimizers one after the other: foreach, fused, capturable differ by class."""
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

for name, settings in (
    ("SGD", dict(lr=0.1, nesterov=True, momentum=0.9)),
    ("SGD", dict(lr=0.1, fused=True)),
    ("Adam", dict(lr=1e-2, foreach=True)),
    ("Adam", dict(lr=1e-2, fused=True)),
    ("AdamW", dict(lr=1e-2, amsgrad=True)),
    ("Adagrad", dict(lr=1e-2)),
    ("Adadelta", dict()),
    ("Rprop", dict(lr=1e-2)),
    ("RMSprop", dict(lr=1e-2, centered=True)),
    ("NAdam", dict(lr=1e-2)),
    ("Adamax", dict(lr=1e-2, maximize=False)),
):
    torch.manual_seed(0)
    model = net()
    optimizer = getattr(torch.optim, name)(model.parameters(), **settings)
    print(name, [step(model, optimizer) for _ in range(3)], sha(model.parameters()))
