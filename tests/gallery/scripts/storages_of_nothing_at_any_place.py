"""Gradients, activations and parameters lose and change their storage: resize_, set_, set_data, in hooks and between steps."""
import hashlib

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


def sha(tensors):
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def net(width=32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


def batch(generator, size=16):
    inputs = torch.randn(size, 8, generator=generator)
    return inputs, inputs[:, :3].argmax(1)


def step(model, optimizer, generator, size=16):
    inputs, targets = batch(generator, size)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.item()


model, generator = net(32), torch.Generator().manual_seed(1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
spare = torch.zeros(4096)


def drop_gradient(parameter):
    if turn % 3 == 1:
        parameter.grad.resize_(parameter.shape).mul_(0.5)
    elif turn % 3 == 2:
        parameter.grad = torch.zeros(0).set_(parameter.grad.untyped_storage(), 0, parameter.shape)


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(drop_gradient)
for turn in range(18):
    inputs, targets = batch(generator)
    optimizer.zero_grad(set_to_none=turn % 2 == 0)
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    inputs.untyped_storage().resize_(0)
    for parameter in model.parameters():
        if turn % 4 == 3:
            parameter.data = parameter.data.clone()
        if turn % 6 == 5:
            spare[: parameter.numel()].copy_(parameter.detach().flatten())
            parameter.grad.untyped_storage().resize_(0)
            parameter.grad = None
            parameter.data.set_(spare[: parameter.numel()].clone().untyped_storage(), 0, parameter.shape)
    print(turn, loss.item().hex())
print(sha(model.parameters()))
