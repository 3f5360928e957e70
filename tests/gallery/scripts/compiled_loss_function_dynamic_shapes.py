"""A compiled loss function meets batches of several sizes, with graph breaks by print inside."""
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


@torch.compile(backend="eager")
def loss_of(inputs, targets):
    output = model(inputs)
    torch._dynamo.graph_break()
    return nn.functional.cross_entropy(output, targets)


for number, size in enumerate((16, 16, 12, 12, 7, 16, 5, 3, 16)):
    inputs, targets = batch(size)
    optimizer.zero_grad()
    loss = loss_of(inputs, targets)
    loss.backward()
    optimizer.step()
    print(number, loss.item().hex())
print(sum(torch._dynamo.utils.counters["graph_break"].values()), torch._dynamo.utils.counters["stats"]["unique_graphs"])
print(sha(model.parameters()))
