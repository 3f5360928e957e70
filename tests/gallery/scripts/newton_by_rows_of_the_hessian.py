"""Newton's method by hand: each row of the Hessian is a backward pass, and one update follows them all."""
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

model = nn.Linear(8, 3)
params = list(model.parameters())
inputs, targets = batch(32)
for number in range(6):
    loss = nn.functional.cross_entropy(model(inputs), targets)
    grads = torch.autograd.grad(loss, params, create_graph=True)
    flat = torch.cat([g.reshape(-1) for g in grads])
    rows = [torch.cat([h.reshape(-1) for h in torch.autograd.grad(entry, params, retain_graph=True)]) for entry in flat]
    hessian = torch.stack(rows) + 1e-2 * torch.eye(len(flat))
    step = torch.linalg.solve(hessian, flat.detach())
    with torch.no_grad():
        start = 0
        for p in params:
            p -= step[start:start + p.numel()].view_as(p)
            start += p.numel()
    print(loss.item().hex())
print(sha(params))
