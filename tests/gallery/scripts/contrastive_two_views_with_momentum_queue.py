"""Contrastive: two views of 16, a momentum encoder without gradients, a queue of negatives, shuffled batch norm."""
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

from torch.utils.data import DataLoader

query = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
key = copy.deepcopy(query).requires_grad_(False)
queue = nn.functional.normalize(torch.randn(4, 64), dim=0)
optimizer = torch.optim.SGD(query.parameters(), lr=0.05)
rows = torch.randn(160, 8)


class Views(torch.utils.data.Dataset):
    def __len__(self):
        return 160

    def __getitem__(self, index):
        return [rows[index] + 0.1, rows[index] - 0.1], index


for (one, two), index in DataLoader(Views(), batch_size=16):
    q = nn.functional.normalize(query(one))
    with torch.no_grad():
        for a, b in zip(key.parameters(), query.parameters()):
            a.mul_(0.99).add_(b, alpha=0.01)
        order = torch.randperm(16)
        k = nn.functional.normalize(key(two[order]))[order.argsort()]
    logits = torch.cat([(q * k).sum(1, keepdim=True), q @ queue], 1) / 0.07
    loss = nn.functional.cross_entropy(logits, torch.zeros(16, dtype=torch.long))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    queue = torch.cat([k.T, queue[:, :-16]], 1)
print(sha([*query.parameters(), queue]))
