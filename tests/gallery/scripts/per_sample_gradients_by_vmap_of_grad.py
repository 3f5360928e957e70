"""Differential privacy style: vmap(grad) per sample, clipped by hand, given to an optimizer as .grad."""
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
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)


def loss_of(weights, sample, target):
    output = torch.func.functional_call(model, weights, (sample.unsqueeze(0),))
    return nn.functional.cross_entropy(output, target.unsqueeze(0))


for number in range(8):
    inputs, targets = batch()
    weights = {name: value.detach() for name, value in model.named_parameters()}
    gradients = torch.vmap(torch.func.grad(loss_of), in_dims=(None, 0, 0))(weights, inputs, targets)
    for name, parameter in model.named_parameters():
        parameter.grad = gradients[name].clamp(-0.1, 0.1).mean(0)
    optimizer.step()
    print(number, loss_of(weights, inputs[0], targets[0]).item().hex())
print(sha(model.parameters()))
