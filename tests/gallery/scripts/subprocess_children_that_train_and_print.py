"""Children started by subprocess, with output captured and inherited, one by -c with arguments and one that fails."""
import subprocess
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

CODE = """
import sys, torch
torch.manual_seed(0); torch.set_num_threads(1)
weight = torch.ones(3, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(4):
    optimizer.zero_grad(); (weight ** 2).sum().backward(); optimizer.step()
print('child', sys.argv[1:], weight.tolist())
sys.exit(int(sys.argv[1]))
"""
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(6):
    print(number, step(model, optimizer), flush=True)
    if number == 3:
        done = subprocess.run([sys.executable, "-c", CODE, "0"], capture_output=True, text=True)
        print(done.returncode, repr(done.stdout), repr(done.stderr))
    if number == 4:
        done = subprocess.run([sys.executable, "-c", "import sys; print(sys.stdin.read(), flush=True); sys.exit('text')"], input="given", text=True, stderr=subprocess.DEVNULL)
        print(done.returncode)
print(sha(model.parameters()))
