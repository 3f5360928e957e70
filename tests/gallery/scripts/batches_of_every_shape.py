"""Collated as dataclasses, named tuples, lists of strings, nested dictionaries, ragged lists; batch_size=None; a batch sampler."""
import collections, dataclasses
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

from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rows = [batch(1) for _ in range(32)]
Named = collections.namedtuple("Named", "text inputs targets")


@dataclasses.dataclass
class Batch:
    names: list
    inputs: torch.Tensor
    targets: torch.Tensor


def join(pairs):
    return torch.cat([x for x, _ in pairs]), torch.cat([y for _, y in pairs])


def as_dataclass(pairs):
    return Batch(["a"] * len(pairs), *join(pairs))


def as_named(pairs):
    return Named(["some text"] * len(pairs), *join(pairs))


def as_nested(pairs):
    x, y = join(pairs)
    return {"meta": {"ids": [[n] * n for n in range(len(pairs))], "scale": 1.0}, "views": [[x[:, :4]], (x[:, 4:],)], "target": y}


class Whole(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return join(rows[index * 8 : index * 8 + 8])


def train(x, y):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()


for b in DataLoader(rows, batch_size=8, collate_fn=as_dataclass):
    train(b.inputs, b.targets)
for text, x, y in DataLoader(rows, batch_size=8, collate_fn=as_named):
    train(x, y)
for b in DataLoader(rows, batch_size=8, collate_fn=as_nested):
    train(torch.cat([b["views"][0][0], b["views"][1][0]], 1), b["target"])
for x, y in DataLoader(Whole(), batch_size=None):
    train(x, y)
for x, y in DataLoader(rows, batch_sampler=BatchSampler(SequentialSampler(rows), 8, True), collate_fn=join):
    train(x, y)
print(sha(model.parameters()))
