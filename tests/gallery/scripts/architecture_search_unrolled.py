"""DARTS of second order: the architecture by an unrolled copy and finite differences, then the weights."""
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

import copy

class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.ops = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        self.head = nn.Linear(8, 3)
        self.alpha = nn.Parameter(torch.zeros(3))
    def forward(self, x):
        weights = self.alpha.softmax(0)
        return self.head(sum(w * op(x).relu() for w, op in zip(weights, self.ops)))
    def weights(self):
        return [*self.ops.parameters(), *self.head.parameters()]
model = Cell()
ow = torch.optim.SGD(model.weights(), 0.1, momentum=0.9)
oa = torch.optim.Adam([model.alpha], 1e-2)
def weight():
    x, y = batch()
    ow.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    ow.step()
def arch():
    x, y = batch()
    oa.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    oa.step()

def unrolled():
    x, y = batch(); vx, vy = batch()
    ws = model.weights()
    loss = nn.functional.cross_entropy(model(x), y)
    gw = torch.autograd.grad(loss, ws)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for p, g in zip(twin.weights(), gw): p -= 0.1 * g
    vl = nn.functional.cross_entropy(twin(vx), vy)
    dal, *dw = torch.autograd.grad(vl, [twin.alpha, *twin.weights()])
    eps = 0.01
    das = []
    for sign in (1, -2):
        with torch.no_grad():
            for p, d in zip(ws, dw): p += sign * eps * d
        das.append(torch.autograd.grad(nn.functional.cross_entropy(model(x), y), [model.alpha])[0])
    with torch.no_grad():
        for p, d in zip(ws, dw): p += eps * d
    oa.zero_grad()
    model.alpha.grad = dal - 0.1 * (das[0] - das[1]) / (2 * eps)
    oa.step()
for number in range(8):
    unrolled(); weight()
print(sha(model.parameters()))
