"""Newton by conjugate gradients with functional_hvp."""
import copy
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


w = torch.zeros(8)
x = torch.randn(64, 8); y = (x[:, 0] > 0).float()
def f(w):
    return nn.functional.binary_cross_entropy_with_logits(x @ w, y) + 1e-3 * w.square().sum()
for number in range(6):
    g = torch.func.grad(f)(w)
    d, r = torch.zeros_like(g), -g
    p = r.clone()
    for _ in range(4):
        hp = torch.autograd.functional.hvp(f, w, p)[1]
        a = (r @ r) / (p @ hp)
        d, new = d + a * p, r - a * hp
        p, r = new + (new @ new) / (r @ r) * p, new
    w = w + d
print(sha([w]))
