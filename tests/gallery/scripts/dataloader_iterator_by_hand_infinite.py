"""next(iterator) with restart on StopIteration, two loaders zipped, and an iterator subclassed by the user."""
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

import itertools
from torch.utils.data import DataLoader, TensorDataset


class Endless(DataLoader):
    def __iter__(self):
        while True:
            yield from super().__iter__()


labelled = Endless(TensorDataset(*batch(48)), batch_size=16, shuffle=True)
other = DataLoader(TensorDataset(torch.randn(40, 8)), batch_size=8, drop_last=True)
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
iterator, stops = iter(other), 0
for inputs, targets in itertools.islice(labelled, 12):
    try:
        (extra,) = next(iterator)
    except StopIteration:
        stops += 1
        iterator = iter(other)
        (extra,) = next(iterator)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), targets) + model(extra).pow(2).mean() * 0.01
    loss.backward()
    optimizer.step()
    print(loss.item().hex(), stops)
print(sha(model.parameters()))
