"""torch.package packs the model with its code in mid-training and loads it; the trained copy goes on."""
import io
import os
import sys

from torch import package
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


PART = """import torch


class Part(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 3)

    def forward(self, inputs):
        return self.layer(inputs)
"""
with open("parts_of_mine.py", "w") as file:
    file.write(PART)
sys.path.insert(0, os.getcwd())
from parts_of_mine import Part

model = Part()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(12):
    print(number, step(model, optimizer))
    if number in (0, 4, 9):
        packed = io.BytesIO()
        with package.PackageExporter(packed) as exporter:
            exporter.extern("torch.**")
            exporter.intern("parts_of_mine")
            exporter.save_pickle("model", "model.pkl", model)
        packed.seek(0)
        other = package.PackageImporter(packed).load_pickle("model", "model.pkl")
        print(type(other).__module__, len(packed.getvalue()) > 1000, sorted(exporter.externed_modules()))
optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
for number in range(12):
    print(number, step(other, optimizer))
print(sha(model.parameters()), sha(other.parameters()))
