"""A hand-made EMA is a second module evaluated in train mode without no_grad, so that it looks like a forward pass of training."""
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

model = net()
ema = copy.deepcopy(model)
for parameter in ema.parameters():
    parameter.requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(16):
    print(number, step(model, optimizer))
    for kept, new in zip(ema.parameters(), model.parameters()):
        kept.lerp_(new.detach(), 0.1)
    if number in (3, 4, 9):
        print("ema", ema(batch(5)[0]).sum().item().hex())
print(sha(ema.parameters()))
