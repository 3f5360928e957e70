"""torch.jit.trace runs the model under the tracer, where any Python conversion of ours warns, and warnings are errors here."""
import warnings
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


def trace(when):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.trace(model, torch.ones(2, 8))
    print(when, len(list(traced.graph.nodes())), sorted(node.kind() for node in traced.inlined_graph.nodes()))


trace("new")
for number in range(12):
    print(number, step(model, optimizer))
    if number in (0, 3, 4, 8):
        trace(number)
trace("end")
print(sha(model.parameters()))
