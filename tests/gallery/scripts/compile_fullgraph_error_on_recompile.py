"""Full graph and error_on_recompile: a graph break or a second compile caused by a profiler ends the script."""
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

torch._dynamo.config.error_on_recompile = True
model = net()
compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for number in range(10):
    print(number, step(compiled, optimizer))
print(torch._dynamo.utils.counters["stats"]["unique_graphs"], sha(model.parameters()))
