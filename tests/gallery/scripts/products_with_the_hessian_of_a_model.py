"""A model's weights as arguments: a gradient, three products with the Hessian by vhp, and new weights."""
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

model = net()
names = [n for n, _ in model.named_parameters()]
params = tuple(p.detach().clone() for p in model.parameters())
inputs, targets = batch(32)
def f(*ps):
    return nn.functional.cross_entropy(torch.func.functional_call(model, dict(zip(names, ps)), (inputs,)), targets)
for number in range(6):
    g = torch.autograd.functional.jacobian(f, params)
    v = tuple(-t for t in g)
    for _ in range(3):
        _, hv = torch.autograd.functional.vhp(f, params, v)
        v = tuple(a - 0.1 * (h + b) for a, h, b in zip(v, hv, g))
    params = tuple(p + 0.1 * a for p, a in zip(params, v))
print(sha(params))
