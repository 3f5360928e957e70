"""Pruning puts forward pre hooks and masks on layers in mid-run and takes them off again."""
import torch.nn.utils.prune as prune
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
for number in range(12):
    if number == 4:
        prune.l1_unstructured(model[0], "weight", amount=0.5)
        prune.random_structured(model[2], "weight", amount=1, dim=0)
    if number == 9:
        prune.remove(model[0], "weight")
    print(number, step(model, optimizer), [len(m._forward_pre_hooks) for m in model.modules()])
print(list(model.state_dict()), prune.is_pruned(model), sha(model.parameters()))
