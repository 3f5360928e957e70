"""argparse with options that are named like those of a profiler, and the names that a script sees of itself."""
# runner: args=--epochs 2 --out here --record none -m pickle -- --help
import argparse
import os
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

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
parser.add_argument("--out")
parser.add_argument("--record")
parser.add_argument("-m")
parser.add_argument("rest", nargs="*")
print(vars(parser.parse_args()), parser.prog, sys.argv[1:])
print(os.path.basename(sys.argv[0]), os.path.basename(__file__), __name__, __doc__[:8], __package__, __spec__)
print(sys.modules["__main__"].__dict__ is globals(), "sys" in dir(), type(__builtins__).__name__)
print(sorted(name for name in globals() if name.startswith("__")))
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(6):
    print(number, step(model, optimizer))
print(sha(model.parameters()))
