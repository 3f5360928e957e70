"""The PyTorch tutorial on fusing the optimizer into backward: an optimizer per parameter steps in a post-accumulate hook."""
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
optimizers = {parameter: torch.optim.Adam([parameter], lr=1e-2, foreach=False) for parameter in model.parameters()}


def update(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(update)
for number in range(10):
    inputs, targets = batch()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    print(number, loss.item().hex(), [parameter.grad is None for parameter in model.parameters()])
print(sha(model.parameters()))
