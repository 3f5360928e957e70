"""A forward hook raises StopTraining when a count is full; it leaves through the loader's and the profiler's frames; training goes on anew."""
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

from torch.utils.data import DataLoader, TensorDataset


class StopTraining(BaseException):
    pass


model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
calls, snapshots = [], []


def count(module, args, output):
    calls.append(len(args[0]))
    if len(calls) in (7, 14):
        raise StopTraining(len(calls))


handle = model[2].register_forward_hook(count, always_call=True)
for trial in range(2):
    try:
        for inputs, targets in DataLoader(TensorDataset(*batch(320)), batch_size=16):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), targets).backward()
            optimizer.step()
    except StopTraining as stop:
        print("stopped", stop.args, stop.__context__, snapshots[-1:])
        snapshots.append(sha(copy.deepcopy(model).parameters()))
print(snapshots, sha(model.parameters()))
