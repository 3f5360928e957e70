"""saved_tensors_hooks pack activations into files of the user's own, counting pack and unpack."""
import os
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
counts = [0, 0]


def pack(tensor):
    counts[0] += 1
    if isinstance(tensor, nn.Parameter):
        return tensor
    name = f"saved_{counts[0]}.pt"
    torch.save(tensor, name)
    return name


def unpack(thing):
    counts[1] += 1
    if not isinstance(thing, str):
        return thing
    loaded = torch.load(thing)
    os.remove(thing)
    return loaded


for number in range(10):
    manager = torch.autograd.graph.saved_tensors_hooks(pack, unpack) if number % 3 else torch.autograd.graph.save_on_cpu()
    with manager:
        print(number, step(model, optimizer), counts)
print(sorted(os.listdir(".")) , sha(model.parameters()))
