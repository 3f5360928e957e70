"""The loss and its gradients are traced to a graph by make_fx, which then trains."""
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

from torch.fx.experimental.proxy_tensor import make_fx

model, optimizer = net(), None
parameters = list(model.parameters())
optimizer = torch.optim.SGD(parameters, 0.1)


def gradients(values, inputs, targets):
    named = dict(zip([name for name, _ in model.named_parameters()], values))
    loss = nn.functional.cross_entropy(torch.func.functional_call(model, named, (inputs,)), targets)
    return loss, *torch.autograd.grad(loss, values)


graph = make_fx(gradients)([p.detach().requires_grad_() for p in parameters], *batch())
print(len(graph.graph.nodes))
for number in range(12):
    loss, *found = graph([p.detach() for p in parameters], *batch())
    for parameter, gradient in zip(parameters, found):
        parameter.grad = gradient
    optimizer.step()
    print(number, loss.item().hex())
print(sha(parameters))
