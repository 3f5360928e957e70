"""Observers are inserted as forward hooks of torch's own, counted before and after conversion."""
import warnings
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

warnings.simplefilter("ignore")
model = nn.Sequential(torch.ao.quantization.QuantStub(), net(), torch.ao.quantization.DeQuantStub())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for number in range(8):
    print(number, step(model, optimizer))
model.eval().qconfig = torch.ao.quantization.get_default_qconfig("fbgemm")
prepared = torch.ao.quantization.prepare(model)
for _ in range(4):
    prepared(batch()[0])
print([len(m._forward_hooks) for m in prepared.modules()])
converted = torch.ao.quantization.convert(prepared)
print([len(m._forward_hooks) for m in converted.modules()], converted(torch.ones(1, 8)).tolist(), sha(model.parameters()))
