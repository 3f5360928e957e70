"""retain_graph with two backward calls, torch.autograd.backward on two roots, backward without loss in a hook, and zero steps between."""
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
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for number in range(10):
    inputs, targets = batch()
    outputs = model(inputs)
    loss, extra = nn.functional.cross_entropy(outputs, targets), outputs.pow(2).mean()
    optimizer.zero_grad(set_to_none=number % 2 == 0)
    if number % 3 == 0:
        loss.backward(retain_graph=True)
        extra.backward()
    elif number % 3 == 1:
        torch.autograd.backward([loss, extra])
    else:
        outputs.backward(torch.ones_like(outputs) / 100, inputs=list(model.parameters()))
    optimizer.step()
    print(number, loss.item().hex())
print(sha(model.parameters()))
