"""Lazy modules in mid-run, meta init with to_empty, ParameterDict, Bilinear, MoE whose experts are not always called, early exit, Identity nets without parameters."""
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

class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        with torch.device("meta"):
            self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))
        self.gate, self.head = nn.LazyLinear(4), nn.LazyLinear(3)
        self.extra = nn.ParameterDict({"scale": nn.Parameter(torch.ones(8))})
        self.idle = nn.Sequential(nn.Identity(), nn.Dropout(0.0))

    def forward(self, x, early=False):
        best = self.gate(x).argmax(1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            if (mask := best == number).any():
                out[mask] = expert(x[mask])
        out = self.idle(out) * self.extra["scale"]
        return self.head(out) if not early else self.head(x)


model = Mixture()
model.experts.to_empty(device="cpu")
for expert in model.experts:
    expert.reset_parameters()
model(torch.randn(2, 8))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for number in range(14):
    if number == 5:
        model.late = nn.LazyConv1d(4, 1)  # never called
    if number == 9:
        model.experts.append(nn.Linear(8, 8))
        optimizer.add_param_group({"params": model.experts[-1].parameters(), "lr": 1e-3})
        model.gate = nn.Linear(8, 5)
    x, y = batch()
    optimizer.zero_grad(set_to_none=number % 2 == 0)
    nn.functional.cross_entropy(model(x, early=number % 4 == 3), y).backward()
    optimizer.step()
print(sha(p for name, p in model.named_parameters() if "late" not in name), repr(model)[:60])
