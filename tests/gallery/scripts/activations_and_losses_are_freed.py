"""Weak references to inputs, outputs, gradients and graph nodes must die when the step ends."""
import weakref
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
watched = []
model[1].register_forward_hook(lambda module, args, output: watched.extend([weakref.ref(args[0]), weakref.ref(output)]))
for number in range(14):
    inputs, targets = batch()
    outputs = model(inputs)
    loss = nn.functional.cross_entropy(outputs, targets)
    watched += [weakref.ref(thing) for thing in (inputs, outputs, loss)]
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    value = loss.item().hex()
    del inputs, outputs, loss, targets
    print(number, value, [reference() is None for reference in watched])
    watched.clear()
print(sha(model.parameters()))
