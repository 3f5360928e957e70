"""Whoever saves tensors through hooks of their own is told that none may; and saved tensors may be changed in place."""
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


def batch(size=16):
    inputs = torch.randn(size, 8)
    return inputs, inputs[:, :3].argmax(1)

model = nn.Sequential(nn.Linear(8, 16), nn.Sigmoid(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(12):
    inputs, targets = batch()
    optimizer.zero_grad()
    if number % 2:
        with torch.autograd.graph.disable_saved_tensors_hooks("no hooks of saved tensors here"):
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
    else:
        with torch.autograd.graph.allow_mutation_on_saved_tensors():
            hidden = model[1](model[0](inputs))
            loss = nn.functional.cross_entropy(model[2](hidden), targets)
            hidden.mul_(0.0)
            loss.backward()
    optimizer.step()
    print(number, loss.item().hex())
print(sha(model.parameters()))
