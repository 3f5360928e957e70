"""Sparse gradients of an Embedding with SparseAdam beside a dense optimizer."""
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

table = nn.EmbeddingBag(30, 8, sparse=True, mode="mean")
head = nn.Linear(8, 3)
sparse, dense = torch.optim.SparseAdam(list(table.parameters()), lr=1e-2), torch.optim.Adagrad(head.parameters(), lr=0.1)
for number in range(10):
    words, targets = torch.randint(0, 30, (12, 5)), torch.randint(0, 3, (12,))
    sparse.zero_grad()
    dense.zero_grad()
    loss = nn.functional.cross_entropy(head(table(words)), targets)
    loss.backward()
    print(number, loss.item().hex(), table.weight.grad.layout)
    sparse.step()
    dense.step()
print(sha([table.weight, head.weight]))
