"""The script writes another training script and runs it by runpy as __main__, by exec, and by import and reload."""
import importlib
import os
import runpy
import sys
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

CODE = '''
import torch
weight = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(4):
    optimizer.zero_grad(); (weight ** 2).sum().backward(); optimizer.step()
print(__name__, weight.tolist())
'''
with open("other_training.py", "w") as text:
    text.write(CODE)
sys.dont_write_bytecode = True
sys.path.insert(0, os.getcwd())
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(8):
    print(number, step(model, optimizer))
    if number == 3:
        runpy.run_path("other_training.py", run_name="__main__")
    if number == 5:
        exec(compile(CODE, "text", "exec"), {"__name__": "executed"})
import other_training

importlib.reload(other_training)
print(__name__, sha(model.parameters()))
