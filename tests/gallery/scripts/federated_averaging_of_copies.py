"""Federated averaging: three clients a round, each with a copy and an optimizer of its own."""
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


model = net()
for number in range(4):
    states = []
    for client in range(3):
        local = copy.deepcopy(model)
        inner = torch.optim.SGD(local.parameters(), 0.1)
        for _ in range(3):
            x, y = batch()
            inner.zero_grad()
            nn.functional.cross_entropy(local(x), y).backward()
            inner.step()
        states.append(local.state_dict())
    model.load_state_dict({k: sum(s[k] for s in states) / 3 for k in states[0]})
print(sha(model.parameters()))
